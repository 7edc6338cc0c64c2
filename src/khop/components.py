"""Registry of components, which runs and commands name by `kind` or as `package.module:Class`.

A component is a class with `Options`, a pydantic model or a dataclass, and `build(options, context)`. This
module imports neither torch nor another part of khop. It imports a component when a run names it.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Le, MinLen

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

LARGEST = 2**31 - 1  # largest count: the product of two counts fits in the native core's integers
Count = Annotated[int, Ge(1), Le(LARGEST)]
CountOrNone = Annotated[int, Ge(0), Le(LARGEST)]
Text = Annotated[str, MinLen(1)]


@dataclass(frozen=True)
class NoOptions:
    """Options of a component without settings."""


@dataclass(frozen=True)
class Permission:
    """Permission to import the code that a `kind` names as `package.module:Class`."""

    packages: tuple[str, ...] | None = ()  # None: all, because the user's file or command names them

    def __post_init__(self) -> None:
        for name in self.packages or ():
            if not _is_dotted(name):
                raise ValueError(f"--allow-code {name}: must be a package or a module, such as my_package")

    def check(self, module: str) -> None:
        """Raise ValueError unless the module may be imported."""
        if self.packages is None or any(f"{module}.".startswith(f"{name}.") for name in self.packages):
            return
        raise ValueError(
            "code named by a run folder is not imported without permission; if you trust it, give "
            f"--allow-code {module.partition('.')[0]}"
        )


NOTHING_NAMED = Permission()
ANY_NAMED = Permission(None)


@dataclass(frozen=True)
class Component:
    """A loaded component."""

    options: type  # a pydantic model or a dataclass
    build: Callable[[Any, Any], Any]  # (options, context) -> the built object
    resolve: Callable[[Any, Any], Any]  # (options, context) -> options with open settings filled in
    declared: Any = None  # the class itself

    @property
    def rule(self) -> str | None:
        """For a model, the kind of rule that draws its neighbors, unless a run names one."""
        found = getattr(self.declared, "rule", None)
        if found is None or isinstance(found, str):
            return found
        return RULES.kind_of(type(found)) if found.has_weights(-1) else None


@dataclass(frozen=True)
class ImportedLater:
    """A function that is imported at its first call, so that options do not import torch."""

    target: str  # "module:function"

    def __call__(self, options: object, context: object) -> Any:  # noqa: ANN401
        """Import the function and call it."""
        return _object(self.target)(options, context)


@dataclass(frozen=True)
class Allowed:
    """Description of an option's allowed values, if its type and limits are not enough."""

    words: str


@dataclass(frozen=True)
class Default:
    """Text that describes an option's default where the value alone does not explain it."""

    words: str


@dataclass(frozen=True)
class Family:
    """Components that are used in the same place."""

    group: str  # group of entry points of other packages: "khop.models"
    builtin: Mapping[str, str]  # kind -> "module:Class"
    # "module:function", which wraps an object without `build`, such as a torch class, or returns None
    declared_by: str | None = None
    default: str = ""  # the default kind of a run; empty: none
    makes: str = ""  # the object that a component builds
    methods: tuple[str, ...] = ()  # a method that identifies this object

    def kinds(self) -> tuple[str, ...]:
        """Return the built-in kinds and those of installed packages, without loading them."""
        return (*self.builtin, *(kind for kind in self._installed() if kind not in self.builtin))

    def kind_of(self, declared: type) -> str | None:
        """Return the kind of a built-in class; None for another class."""
        target = f"{declared.__module__}:{declared.__qualname__}"
        return next((kind for kind, name in self.builtin.items() if name == target), None)

    def allowed(self) -> str:
        """Describe the allowed kinds."""
        kinds = self.kinds()
        return f"{'one of ' * (len(kinds) > 1)}{', '.join(kinds)}, or package.module:Class"

    def load(self, kind: str, permission: Permission = NOTHING_NAMED) -> Component:
        """Import a component. Raises ValueError if it does not exist or may not be imported.

        Built-in and installed components need no permission. Others may be in the working directory, which is
        on `sys.path` while they are imported, resolved and built.
        """
        if kind in self.builtin:
            return _component(_object(self.builtin[kind]))
        installed = self._installed()
        if kind in installed:
            return _component(_loaded(installed[kind]))
        module, separator, name = kind.partition(":")
        if not (separator and _is_dotted(module) and _is_dotted(name)):
            raise ValueError(f"must be {self.allowed()}")
        permission.check(module)
        with _working_folder_on_path():
            _remember(module)
            found = self._component(_object(kind))
        return replace(found, build=_FromFolder(found.build), resolve=_FromFolder(found.resolve))

    def _component(self, found: Any) -> Component:  # noqa: ANN401
        declared: Component | None = None
        if self.declared_by is not None and not hasattr(found, "build"):
            declared = _object(self.declared_by)(found)
        return declared or _component(found)

    def _installed(self) -> Mapping[str, EntryPoint]:
        return _installed_in(self.group, tuple(place for place in sys.path if not _is_working_folder(place)))


# Built-in components: to add one, write its class and a line in this table, then run scripts/options-file.
MODELS = Family(
    "khop.models",
    {
        "sage": "khop.models.sage:SAGE",
        "rgcn": "khop.models.rgcn:RGCN",
        "gat": "khop.models.gat:GAT",
        "gin": "khop.models.gin:GIN",
        "gcn": "khop.models.gcn:GCN",
        "hgt": "khop.models.hgt:HGT",
        "rgat": "khop.models.rgat:RGAT",
        "lightgcn": "khop.models.light_gcn:LightGCN",
        "mlp": "khop.models.mlp:ColumnMLP",
    },
    default="sage",
    makes="torch.nn.Module",
    methods=("forward", "state_dict"),
)
LINK_PREDICTION = "link-prediction"
TASKS = Family(
    "khop.tasks",
    {
        "node-classification": "khop.run.tasks.node_task:ClassifyNodes",
        "node-regression": "khop.run.tasks.node_task:RegressNodes",
        "multi-label": "khop.run.tasks.node_task:LabelNodes",
        "edge-classification": "khop.run.tasks.edge_run_task:ClassifyEdges",
        "edge-regression": "khop.run.tasks.edge_run_task:RegressEdges",
        LINK_PREDICTION: "khop.run.tasks.link_run_task:PredictLinks",
    },
    default="node-classification",
    makes="khop.run.contexts.RunTask",
    methods=("loader", "scores"),
)
SAMPLERS = Family(
    "khop.samplers",
    {
        "neighbor": "khop.sampling.links.links:Neighborhoods",
        "saint-node": "khop.sampling.group_samplers:SaintNodes",
        "saint-edge": "khop.sampling.group_samplers:SaintEdges",
        "saint-walk": "khop.sampling.group_samplers:SaintWalks",
        "cluster": "khop.sampling.group_samplers:ClusterSampler",
        "shadow": "khop.sampling.group_samplers:ShadowSampler",
    },
    default="neighbor",
    makes="khop.Sampler",
    methods=("sample", "needs", "with_threads"),
)
RULES = Family(
    "khop.rules",
    {
        "uniform": "khop.sampling.rules.uniform:Uniform",
        "weighted": "khop.sampling.rules.weighted:Weighted",
        "sum": "khop.sampling.rules.sum:Sum",
        "symmetric-sum": "khop.sampling.rules.sum:SymmetricSum",
        "relation-mean": "khop.sampling.rules.sum:RelationMean",
        "labor": "khop.sampling.rules.labor:Labor",
        "top-k": "khop.sampling.rules.top_k:TopK",
    },
    makes="khop.Rule",
    methods=("plan", "check", "needs", "most"),
)
OPTIMIZERS = Family(
    "khop.optimizers",
    {
        "adam": "khop.training.optimizer_settings:Adam",
        "adamw": "khop.training.optimizer_settings:AdamW",
        "nadam": "khop.training.optimizer_settings:NAdam",
        "radam": "khop.training.optimizer_settings:RAdam",
        "sgd": "khop.training.optimizer_settings:SGD",
        "rmsprop": "khop.training.optimizer_settings:RMSprop",
        "adagrad": "khop.training.optimizer_settings:Adagrad",
    },
    "khop.training.optimizer_settings:component_of_class",
    default="adam",
    makes="khop.OptimizerSettings",  # its type is checked
)
LINK_LOSSES = Family(
    "khop.link_losses",
    {
        "bce": "khop.training.link_losses:PairCrossEntropy",
        "bpr": "khop.training.link_losses:PairwiseRanking",
        "margin": "khop.training.link_losses:MarginRanking",
        "infonce": "khop.training.link_losses:InfoNce",
    },
    default="bce",
    makes="khop.LinkLoss",
    methods=("of_scores",),
)
# Families by the path of the run's table.
FAMILIES: Mapping[str, Family] = {
    "task": TASKS,
    "links.loss": LINK_LOSSES,
    "sampler": SAMPLERS,
    "sampler.rule": RULES,
    "model": MODELS,
    "optimizer": OPTIMIZERS,
}


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


@cache
def _installed_in(group: str, path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group below these folders."""
    entries = [entry for each in _declaring(path) for entry in each.entry_points.select(group=group)]
    return {entry.name: entry for entry in reversed(entries)}


@cache
def _declaring(path: tuple[str, ...]) -> tuple[Distribution, ...]:
    """Return the packages below these folders that declare components, without reading all metadata."""
    from importlib.metadata import distributions  # slow to import, and not always needed

    found = [each for each in distributions(path=list(path)) if "[khop" in (each.read_text(_ENTRIES) or "")]
    # Python imports the first package of a name on the path.
    firsts = (next(iter(distributions(name=each.name, path=list(path)))) for each in found)
    return tuple(each for each, first in zip(found, firsts, strict=True) if _same(each, first))


_ENTRIES = "entry_points.txt"


def _same(one: Distribution, other: Distribution) -> bool:
    return one.locate_file("") == other.locate_file("") and one.version == other.version


def _is_working_folder(place: str) -> bool:
    """Return whether an entry of `sys.path` is the working directory, whose packages are not installed."""
    return place == "" or (os.path.isdir(place) and os.path.samefile(place, os.curdir))


@contextmanager
def _working_folder_on_path() -> Iterator[None]:
    """Put the working directory on `sys.path`, as python -m does; the script `khop` does not."""
    if any(map(_is_working_folder, sys.path)):
        yield
        return
    folder = os.getcwd()
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


@dataclass(frozen=True)
class _FromFolder:
    """A function of a component that may import more modules from the working directory."""

    inner: Callable[[Any, Any], Any]

    def __call__(self, options: object, context: object) -> Any:  # noqa: ANN401
        with _working_folder_on_path():
            return self.inner(options, context)


_PLACES: set[str] = set()  # files and folders of the packages from which components were imported


def is_of_component(file: str) -> bool:
    """Return whether a source file belongs to a package outside khop with a loaded component."""
    return any(Path(file).is_relative_to(place) for place in _PLACES)


def _remember(module: str) -> None:
    package = module.partition(".")[0]
    known = sys.modules.get(package)
    spec = find_spec(package) if known is None else known.__spec__
    if spec is not None:
        _PLACES.update(spec.submodule_search_locations or [spec.origin or package])


def _loaded(entry: EntryPoint) -> Any:  # noqa: ANN401
    _remember(entry.module)
    try:
        return entry.load()
    except (ImportError, AttributeError, SyntaxError) as error:
        package = "its package" if entry.dist is None else entry.dist.name
        raise ValueError(
            f"{entry.value}, which {package} declares in {entry.group}, cannot be loaded: {error}; "
            f"update or reinstall {package}"
        ) from error


def _object(target: str) -> Any:  # noqa: ANN401
    """Import "module:name"; ValueError if it does not exist."""
    module, _, name = target.partition(":")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ValueError(f"{module} cannot be imported: {error}; install it, or correct it") from error
        raise ValueError(
            f"there is no module {error.name!r}; install its package, or start khop in the folder that "
            "contains it"
        ) from None
    except (ImportError, SyntaxError) as error:
        if module.startswith("khop."):  # the message already has the remedy
            raise ValueError(str(error)) from error
        raise ValueError(f"{module} cannot be imported: {error}; correct it") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{module} has no {name!r}; name a class or object in that module")
        found = getattr(found, part)
    return found


def _component(found: Any) -> Component:  # noqa: ANN401
    """Read the declaration of a component.

    A dataclass without `Options` is itself the options, and its instances are the built objects.
    """
    options = getattr(found, "Options", None)
    if options is None and isinstance(found, type) and is_dataclass(found):
        options = found
    if options is None:
        options = NoOptions
    build = getattr(found, "build", _itself if options is found else None)
    if not isinstance(options, type) or not callable(build):
        raise ValueError(
            "a component is a class with build(options, context), and with Options, a dataclass or pydantic "
            "model; or it is a dataclass without both"
        )
    return Component(options, build, getattr(found, "resolve", _unchanged), found)


def _itself(options: object, context: object) -> object:
    return options


def _unchanged(options: object, context: object) -> object:
    return options
