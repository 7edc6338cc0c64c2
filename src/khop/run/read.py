"""Conversion from TOML and options to a RunConfig, and back to TOML. Each error is one sentence.

Presets: runs that come with khop, for `khop train NAME`.

The fingerprint of a run: the settings that must agree between ranks, and with a resumed checkpoint.

Settings of a run, read from its folder.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TypeVar

import tomli_w
from pydantic import ValidationError
from pydantic_core import ErrorDetails

import khop
from khop.arguments import toml_values
from khop.components import ANY_NAMED, NOTHING_NAMED, Component, Permission
from khop.run.run_type import RunField, composed, field_at, run_fields, run_type, sections, value_at
from khop.run.tables import FAMILIES, LINK_PREDICTION, MODELS, SamplerTable, Section
from khop.run.values import RunConfig

COMMAND_LINE = "the command line"
AnyTable = TypeVar("AnyTable", bound=Section)


@dataclass(frozen=True)
class RawRun:
    """The settings of a run as written, before any check."""

    values: Mapping[str, object]
    source: str  # the file or other source of the settings: "run.toml"
    options: Mapping[str, str] = field(default_factory=dict)  # dotted path -> the option that set it
    replaced: Mapping[str, object] = field(default_factory=dict)  # dotted path -> value of the file before
    permission: Permission = NOTHING_NAMED  # to import components that `source` names

    def where(self, *paths: str) -> str:
        """Name the places where these fields were set: the option, or else the file."""
        return ", ".join(dict.fromkeys(self.options.get(path, self.source) for path in paths))

    def permission_at(self, path: str) -> Permission:
        """Return the permission to import what a field names: an option may name any package."""
        return ANY_NAMED if path in self.options else self.permission


def read_toml(path: Path) -> RawRun:
    """Read a run from a TOML file.

    Raises ValueError if the file is not TOML.
    """
    return RawRun(toml_values(path), str(path))


def with_options(raw: RawRun, options: Mapping[str, object]) -> RawRun:
    """Return the run with some fields, by dotted path, replaced from the command line.

    An empty text leaves a field out that has no value by default: `--time ""` trains without a time limit.
    """
    changed = raw
    for path, value in options.items():
        entry = field_at(path)
        is_left_out = value == "" and entry is not None and entry.default is None and not entry.required
        given = None if is_left_out else value
        changed = replace(changed, values=_with_value(changed.values, path.split("."), given))
    # Kinds first: an option of a component is known only to the run that names the component.
    named = {path: entry.option for path in options if (entry := field_at(path))}
    before = {path: _at(raw.values, path) for path in options}
    changed = replace(changed, options={**raw.options, **named}, replaced={**before, **raw.replaced})
    rest = {path: _option_at(path, changed) for path in options.keys() - named.keys()}
    return replace(changed, options={**changed.options, **rest})


def run_type_of(raw: RawRun) -> type[RunConfig]:
    """Return the class of a run, with the options of the components that it names."""
    return _type_of(_implied(raw))


def checked(raw: RawRun) -> RunConfig:
    """Validate a run. Raises ValueError with the first wrong field, its value, allowed values and place.

    Settings that are left out and follow from others are filled in; `notes_on` names them.
    """
    full = _implied(raw)
    return _validated(full, _type_of(full))


def notes_on(raw: RawRun) -> list[str]:
    """Return a sentence for each setting that `checked` fills in or leaves out because of another setting."""
    notes: list[str] = []
    _implied(raw, notes.append)
    return notes


def _unsaid(note: str) -> None:
    """Drop a note."""


def _implied(raw: RawRun, say: Callable[[str], None] = _unsaid) -> RawRun:
    """Return the run with the settings that its other settings imply. What is wrong stays as it is."""
    values = dict(raw.values)
    for imply in (
        _known_kinds, _of_other_task, _without_unknown, _for_cpu, _embeddings, _of_links, _rule, _hops,
        _times,
    ):  # fmt: skip
        values = imply(values, raw, say)
    return replace(raw, values=values)


_Values = dict[str, object]
_Say = Callable[[str], None]
_OTHER_NAMES = {"model": {"graphsage": "sage", "r-gcn": "rgcn", "gatv2": "gat"}}


def _known_kinds(values: _Values, raw: RawRun, say: _Say) -> _Values:
    """Name components as khop does: GraphSAGE is sage, Adam is adam, link_prediction is link-prediction."""
    if _at(values, "model.kind") == "gatv2" and _at(values, "model.attention") in (None, "gatv2"):
        values = _with_value(values, ["model", "attention"], "gatv2")
        say('model gatv2 is gat with attention = "gatv2"')
    for path, (family, _) in FAMILIES.items():
        kind = _at(values, f"{path}.kind")
        if not isinstance(kind, str) or kind in family.kinds():
            continue
        known = kind.lower().replace("_", "-")
        known = _OTHER_NAMES.get(path, {}).get(known, known)
        if known in family.builtin and not (kind == "gatv2" and _at(values, "model.attention") != "gatv2"):
            values = _with_value(values, [*path.split("."), "kind"], known)
            if kind != "gatv2":
                say(f"{path}.kind {kind!r} is {known}")
    return values


def _of_other_task(values: _Values, raw: RawRun, say: _Say) -> _Values:
    """Leave out what a file says of its task if an option names another task."""
    kind, before = _at(values, "task.kind"), raw.replaced.get("task.kind") or FAMILIES["task"][1]
    if "task.kind" not in raw.options or kind == before:
        return values
    for name in ("target", "label", "metric"):
        if _at(values, f"task.{name}") is not None and f"task.{name}" not in raw.options:
            values = _with_value(values, ["task", name], None)
            say(f"task.{name} of {raw.source} is left out: it is that of the task {before}")
    return values


def _without_unknown(values: _Values, raw: RawRun, say: _Say) -> _Values:
    """Leave out settings of a file for another component than the one that an option names."""
    for path, (family, _) in FAMILIES.items():
        kind, table = _at(values, f"{path}.kind"), _at(values, path)
        if f"{path}.kind" not in raw.options or kind not in family.builtin or not isinstance(table, Mapping):
            continue
        known = {name: _fields_of(path, name) for name in family.builtin}
        others = frozenset().union(*known.values()) - known[str(kind)]
        unread = {"bases"} if path == "model" and kind != "rgcn" else set()
        for name in table:
            if (name in others or name in unread) and f"{path}.{name}" not in raw.options:
                values = _with_value(values, [*path.split("."), name], None)
                say(f"{path}.{name} of {raw.source} is left out: {kind} has no such setting")
    return values


def _for_cpu(values: _Values, raw: RawRun, say: _Say) -> _Values:
    """Leave out what a file says for a GPU if `--device cpu` is given."""
    if "device" not in raw.options or _at(values, "device") != "cpu":
        return values
    of_gpu = [path for path in sorted(_GPU) if _at(values, path) is not None]
    of_gpu += ["precision"] if _at(values, "precision") == "tf32" else []
    for path in of_gpu:
        if path not in raw.options:
            values = _with_value(values, path.split("."), None)
            say(f"{path} of {raw.source} is left out: the device is the CPU")
    return values


EMBEDDING = 32  # numbers learned for each node without columns, unless a run says otherwise


def _embeddings(values: _Values, raw: RawRun, say: _Say) -> _Values:
    """Give embeddings a width if other settings are about them."""
    table = _at(values, "model")
    about = {"embedding_update": "dense", "embedded_types": "missing", "unknown": 0}
    given = [n for n, default in about.items() if _at(values, f"model.{n}") not in (None, default)]
    if not given or (isinstance(table, Mapping) and table.get("embedding") is not None):
        return values
    say(f"model.embedding is {EMBEDDING}, the width of embeddings: model.{given[0]} is set")
    return _with_value(values, ["model", "embedding"], EMBEDDING)


def _of_links(values: _Values, raw: RawRun, say: _Say) -> _Values:
    """Fill in settings of link prediction: dropout, the decoder, and how many links share negatives."""
    kind = _at(values, "model.kind")
    is_open = _at(values, "task.kind") == LINK_PREDICTION and _at(values, "model.dropout") is None
    has_dropout = kind in (None, *MODELS.builtin) and "dropout" in _fields_of("model", str(kind or "sage"))
    if is_open and has_dropout:  # best on 3 of 4 sets (benchmarks/link_defaults.py)
        values = _with_value(values, ["model", "dropout"], 0.0)
    if _at(values, "links.filtered") is True and _at(values, "links.decoder") is None:
        values = _with_value(values, ["links", "decoder"], "distmult")
        say("links.decoder is distmult: filtered ranking takes a decoder of relations")
    if _at(values, "links.shared_negatives") and _at(values, "links.negatives_group") is None:
        values = _with_value(values, ["links", "negatives_group"], _SHARING)
        say(f"links.negatives_group is {_SHARING}: so many links share the negatives of shared_negatives")
    return values


_SHARING = 64  # links that share negatives, unless a run says otherwise


def _hops(values: _Values, raw: RawRun, say: _Say) -> _Values:
    """Give each layer a fanout: of one fanout for all, and of the number of layers that an option names."""
    layers, fanouts = _at(values, "model.layers"), _at(values, "sampler.fanouts")
    is_given, groups = "sampler.fanouts" in raw.options, _at(values, "sampler.kind") not in (None, "neighbor")
    if type(layers) is not int or not 0 < layers <= _MOST_HOPS or groups:
        return values
    written = _FANOUTS if fanouts is None else list(fanouts) if isinstance(fanouts, list | tuple) else []
    if not written:
        return values
    if is_given and "model.layers" not in raw.options and len(written) != layers:
        values = _with_value(values, ["model", "layers"], len(written))
        say(f"model.layers is {len(written)}: one layer per fanout of {raw.where('sampler.fanouts')}")
        layers = len(written)
    is_free = fanouts is None or len(written) == 1 or ("model.layers" in raw.options and not is_given)
    if is_free and len(written) != layers:
        hops = [*written, *[written[-1]] * layers][:layers]
        values = _with_value(values, ["sampler", "fanouts"], hops)
        say(f"sampler.fanouts is {hops}: one for each of {layers} layers")
    return values


_MOST_HOPS, _FANOUTS = 64, list(SamplerTable.model_fields["fanouts"].default)


def _times(values: _Values, raw: RawRun, say: _Say) -> _Values:
    """Draw by the column `time` if settings are about times, and evaluate as training draws."""
    about = {"window": None, "temporal_strategy": "sample"}
    given = [name for name, of in about.items() if _at(values, f"sampler.{name}") not in (None, of)]
    if given and _at(values, "sampler.time") is None and "sampler.time" not in raw.options:
        values = _with_value(values, ["sampler", "time"], "time")
        say(f"sampler.time is 'time', the column that khop import writes: sampler.{given[0]} is set")
    for name in given if _at(values, "sampler.time") is None else ():
        if f"sampler.{name}" not in raw.options:
            values = _with_value(values, ["sampler", name], None)
            say(f"sampler.{name} of {raw.source} is left out: there is no sampler.time")
    groups = _at(values, "sampler.kind") not in (None, "neighbor")
    if _at(values, "sampler.time") is not None and not _at(values, "evaluation.fanouts") and not groups:
        fanouts = _at(values, "sampler.fanouts") or _FANOUTS
        values = _with_value(values, ["evaluation", "fanouts"], fanouts)
        say(f"evaluation.fanouts is {fanouts}, as in training: sampler.time is set, so neighbors are drawn")
    return values


def _rule(values: _Values, raw: RawRun, say: _Say) -> _Values:
    """Name the rule that the model needs; a rule that the run names reads the run's weights and relations."""
    kind, rule = _at(values, "model.kind"), _rule_of_model(values, raw)
    asked = _at(values, "sampler.rule.kind")
    if asked is None and rule is not None:
        values = _with_rule(values, rule)
        say(f"{kind} draws neighbors by the rule {rule}, which it needs; sampler.rule.kind is not set")
    elif asked in _WEIGHTED:
        values = _with_rule(values, str(asked))
    relation = _at(values, "model.relation")
    if asked == "relation-mean" and relation is not None and _at(values, "sampler.rule.column") is None:
        values = _with_value(values, ["sampler", "rule", "column"], relation)
        say(f"sampler.rule.column is {relation!r}, the column of model.relation")
    return values


_WEIGHTED = ("uniform", "weighted", "sum", "symmetric-sum", "top-k")  # rules that draw by the run's weights


@cache
def _fields_of(path: str, kind: str) -> frozenset[str]:
    """Return the settings of one of khop's components."""
    run = run_type(_with_value({}, [*path.split("."), "kind"], kind))
    return frozenset(sections(run)[path].model_fields)


def _rule_of_model(values: Mapping[str, object], raw: RawRun) -> str | None:
    """Return the kind of rule that the run's model needs; None for any, or if there is no such model."""
    kind = _at(values, "model.kind")
    if not isinstance(kind, str):
        return None
    try:
        return MODELS.load(kind, raw.permission_at("model.kind")).rule
    except ValueError:
        return None  # the check of the run reports it


def _with_rule(values: Mapping[str, object], rule: str) -> dict[str, object]:
    """Name the rule. It draws by the weights, and with replacement, if the run says so."""
    known = _fields_of("sampler.rule", rule)
    inner = {"weight": "column", "replacement": "replacement"}
    given = {
        name: value
        for name, field in inner.items()
        if field in known
        and (value := _at(values, f"sampler.{name}"))
        and _at(values, f"sampler.rule.{field}") is None
    }
    full = _with_value(values, ["sampler", "rule", "kind"], rule)
    for name, value in given.items():
        full = _with_value(full, ["sampler", "rule", inner[name]], value)
        full = _with_value(full, ["sampler", name], None)
    return full


def _type_of(raw: RawRun) -> type[RunConfig]:
    return run_type(raw.values, raw.permission_at, raw.where)


def _at(values: Mapping[str, object], path: str) -> object:
    found: object = values
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def checked_options(raw: RawRun, component: Component) -> dict[str, object]:
    """Validate the options of a component that is no part of a run, as `checked` does for a run."""
    table = composed(Section, component.options)
    made = _validated(raw, table)
    return {name: getattr(made, name) for name in table.model_fields}


def component_fields(component: Component, taken: Set[str], prefix: str) -> list[RunField]:
    """Return the fields of such options; an option in `taken` gets the prefix."""
    found = run_fields(composed(Section, component.options))
    return [
        replace(entry, option=f"--{prefix}-{entry.option.removeprefix('--')}")
        if entry.option in taken
        else entry
        for entry in found
    ]


def _validated(raw: RawRun, table: type[AnyTable]) -> AnyTable:
    try:
        return table.model_validate(raw.values)
    except ValidationError as error:
        raise ValueError(_sentence(error.errors(include_url=False)[0], raw, table)) from None


def chosen(
    path: str,
    asked: str | None,
    there: Iterable[str],
    what: str,
    raw: RawRun,
    preferred: Collection[str] = (),
) -> str:
    """Return the requested name, or the only existing one. Raises ValueError if there is no such name.

    If several exist and none is requested, the only one of `preferred` is taken.
    """
    names = list(there)
    if asked is None:
        if not names:
            raise ValueError(
                f"{path}: the graph has no {what}, which the task needs; give another task or graph "
                f"({raw.where(path)})"
            )
        first, *others = [name for name in names if name in preferred] or names
        if others:
            raise ValueError(
                f"{path} is not given, and the {what} are {', '.join(names)}: name one ({raw.where(path)})"
            )
        return first
    if asked not in names:
        raise ValueError(
            f"{path} is {asked!r}: the {what} are {', '.join(names) or 'none'} ({raw.where(path)})"
        )
    return asked


def to_toml(config: RunConfig) -> str:
    """Return the run as TOML, from which `read_toml` and `checked` make an equal run."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def _with_value(values: Mapping[str, object], path: Sequence[str], value: object) -> dict[str, object]:
    """Return the values with another one at a path; None, and one below a value, is left out."""
    name, *rest = path
    if value is None and not rest:
        return {key: other for key, other in values.items() if key != name}
    match values.get(name, {}):
        case Mapping() as table if rest:
            return {**values, name: _with_value(table, rest, value)}
    return {**values} if rest else {**values, name: value}


def _option_at(path: str, raw: RawRun) -> str:
    entry = field_at(path, run_type_of(raw))
    assert entry is not None, path
    return entry.option


def _sentence(error: ErrorDetails, raw: RawRun, run: type[Section]) -> str:
    names = _names_of_field([str(part) for part in error["loc"] if isinstance(part, str)], run)
    path = ".".join(names)
    entry = field_at(path, run)
    if error["type"] == "extra_forbidden":
        return f"{path}: no such field; {_hint(names, run)} ({raw.source})"
    if error["type"] == "missing":
        assert entry is not None
        in_file = "" if raw.source == COMMAND_LINE else f", or {path} = ... in the file"
        return f"{path} is missing: give {entry.option}{in_file} ({raw.source})"
    if entry is None and error["type"] == "value_error":  # of a whole table
        message = str(error["ctx"]["error"])
        message = message if path in message else f"{path}: {message}"
        options = [option for at, option in raw.options.items() if at in message]
        return f"{message} ({', '.join([raw.source, *options])})"
    value = _shown(_value(raw.values, names, entry))
    if error["type"] in ("value_error", "assertion_error") and entry is not None and not entry.is_worded:
        return f"{path} is {value}: {error['ctx']['error']} ({raw.where(path)})"
    allowed = _allowed(entry)
    if error["type"] == "less_than_equal" and "at most" not in allowed:
        allowed += f" and at most {error['ctx']['le']}"
    return f"{path} is {value}: must be {allowed} ({raw.where(path)})"


def _names_of_field(names: list[str], run: type[Section]) -> list[str]:
    """Keep the names up to a field. For an entry of a list, pydantic appends the type that did not match."""
    lengths = (length for length in range(len(names)) if field_at(".".join(names[:length]), run))
    return names[: next(lengths, len(names))]


def _allowed(entry: RunField | None) -> str:
    return "a table of fields" if entry is None else entry.allowed


def _value(values: Mapping[str, object], names: list[str], entry: RunField | None) -> object:
    """Return the value of a field as written, or else its default, which a component may refuse too."""
    value: object = values
    for name in names:
        match value:
            case Mapping() if name in value:
                value = value[name]
            case _:
                return None if entry is None else entry.default
    return value


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else repr(value)


def _hint(names: list[str], run: type[Section]) -> str:
    section, name = ".".join(names[:-1]), names[-1]
    here = list(sections(run)[section].model_fields)
    leaves = {path.rpartition(".")[2]: path for path in reversed([entry.path for entry in run_fields(run)])}
    close = difflib.get_close_matches(name, here, n=1, cutoff=0.7)
    if close:
        return f"did you mean {'.'.join([*names[:-1], close[0]])}?"
    elsewhere = difflib.get_close_matches(name, leaves, n=1, cutoff=0.7)
    if elsewhere:
        return f"did you mean {leaves[elsewhere[0]]}?"
    return f"there are {', '.join(here)}"


DEPENDENCIES = {"package depends package": 5, "package rev_depends package": 5, "*": 0}
# Tuned on the validation split; docs/debian.md has the results.
_PRESETS: Mapping[str, Mapping[str, object]] = {
    "debian": {
        "graph": "debian",
        "sampler": {"fanouts": [5, 5]},
        "model": {"hidden": 256, "dropout": 0.5, "norm": "layer"},
        "training": {"epochs": 16, "batch_size": 1024, "learning_rate": 3e-3},
    },
    "debian-links": {
        "graph": "debian-typed",
        "task": {"kind": "link-prediction", "target": "package depends package"},
        "links": {"decoder": "mlp"},
        "sampler": {"fanouts": [DEPENDENCIES, DEPENDENCIES]},
        "model": {"hidden": 128, "dropout": 0.0, "norm": "layer", "embedding": 0},
        "training": {"epochs": 10, "batch_size": 8192, "learning_rate": 5e-3},
        "evaluation": {"every": 2},
    },
    "debian-typed": {
        "graph": "debian-typed",
        "sampler": {"fanouts": [5, 5]},
        "model": {"hidden": 256, "dropout": 0.6, "norm": "layer", "embedding": 32},
        "training": {"epochs": 8, "batch_size": 1024, "learning_rate": 3e-3},
    },
}


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets."""
    return tuple(_PRESETS)


def preset(name: str) -> RawRun:
    """Return the preset of this name, which options may change."""
    return RawRun(_PRESETS[name], f"preset {name}")


_GPU = {"gpu.topology", "gpu.features", "gpu.cache", "gpu.launches"}
# Settings of the machine and of the output. They do not change the identity of a run.
MACHINE = frozenset({"device", "threads", "compute_threads", "prefetch", "prefetch_bytes", "gather", *_GPU})
# Settings of the communication between processes, and of the placement of the graph.
_CACHES = {"parts.cache_bytes", "parts.cache_by"}
_PARTS = {"parts.placement", "parts.lanes", *_CACHES}
_SERVERS = {
    f"servers.{name}"
    for name in (
        "addresses", "token_file", "ca", "client_cert", "client_key", "insecure", "deadline", "attempt",
    )
}  # fmt: skip
TOGETHER = frozenset({"deadline", "interface", "allow_public", *_PARTS, *_SERVERS})
NEUTRAL = (
    MACHINE
    | TOGETHER
    | {
        "tensorboard",
        "logger",
        "training.micro_batches",
        "checkpoint.steps",
        "checkpoint.minutes",
        "checkpoint.keep",
        "checkpoint.best",
    }
)
# Settings that may change when a run is resumed.
RESUMABLE = NEUTRAL | {"training.epochs", "training.patience"}


def facts_of(config: RunConfig, graph_fingerprint: str) -> Mapping[str, str]:
    """Return every setting that decides the course of a run, by dotted path, with graph and khop version.

    The graph is compared by its content, not by its path.
    """
    free = RESUMABLE | {"graph", "out"}
    if config.training.schedule != "constant":  # then every update depends on the number of epochs
        free -= {"training.epochs"}
    deciding = [entry.path for entry in run_fields(type(config)) if entry.path not in free]
    settings = {path: str(value_at(config, path)) for path in deciding}
    return {**settings, "graph": graph_fingerprint, "khop": khop.__version__}


CONFIG, CHECKPOINTS = "config.toml", "checkpoints"
DIGEST = b"# sha256 of what follows: "


def is_run_folder(path: Path) -> bool:
    """Return whether `khop train` has made this folder."""
    return (path / CONFIG).is_file()


def saved_run(folder: Path, packages: Sequence[str], notice: Callable[[str], None]) -> RawRun:
    """Read the run in `folder`, which may name code of `packages`. ValueError if it is not a run folder.

    If config.toml is not as khop wrote it, `notice` gets a sentence. Settings that decide the course of a run
    are compared with the checkpoint; all others are used as they are.
    """
    file = folder / CONFIG
    if not is_run_folder(folder):
        raise ValueError(f"{folder}: not a run folder, it has no {CONFIG}; name one that khop train has made")
    _, is_signed, rest = file.read_bytes().partition(DIGEST)
    digest, _, body = rest.partition(b"\n")
    if is_signed and digest != digest_of(body):
        notice(f"{file}: was changed or damaged after khop train wrote it; its present settings are used")
    return replace(read_toml(file), permission=Permission(tuple(packages)))


def digest_of(body: bytes) -> bytes:
    """Return the digest of the settings, as `config.toml` holds it."""
    return hashlib.sha256(body).hexdigest().encode()
