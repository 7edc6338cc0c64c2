"""Settings of a run as written in TOML files, options, presets and run folders.

This module imports neither torch nor pydantic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from khop.arguments import toml_values
from khop.components import (
    ANY_NAMED,
    FAMILIES,
    LINK_PREDICTION,
    MODELS,
    NOTHING_NAMED,
    RULES,
    SAMPLERS,
    TASKS,
    Permission,
)
from khop.run.fields import field_at, kind_options, option_of

COMMAND_LINE = "the command line"


@dataclass(frozen=True)
class RawRun:
    """The settings of a run as written, before any check."""

    values: Mapping[str, object]
    source: str  # the file or other source of the settings: "run.toml"
    options: Mapping[str, str] = field(default_factory=dict)  # dotted path -> the option that set it
    replaced: Mapping[str, object] = field(default_factory=dict)  # dotted path -> value of the file before
    permission: Permission = NOTHING_NAMED  # to import components that `source` names

    def where(self, *paths: str) -> str:
        """Return where these fields were set: the option, or else the file."""
        return ", ".join(dict.fromkeys(self.options.get(path, self.source) for path in paths))

    def permission_at(self, path: str) -> Permission:
        """Return the permission to import the code that a field names: an option may name any package."""
        return ANY_NAMED if path in self.options else self.permission


def read_toml(path: Path) -> RawRun:
    """Read a run from a TOML file.

    Raises ValueError if the file is not TOML.
    """
    return RawRun(toml_values(path), str(path))


def with_options(raw: RawRun, options: Mapping[str, object]) -> RawRun:
    """Return the run with some fields, by dotted path, replaced from the command line.

    An empty string removes an optional field: `--time ""` trains without a time limit.
    """
    changed = raw
    for path, value in options.items():
        entry = field_at(path)
        is_left_out = value == "" and entry is not None and entry.default is None and not entry.required
        given = None if is_left_out else value
        changed = replace(changed, values=_with_value(changed.values, path.split("."), given))
    before = {path: value_in(raw.values, path) for path in options}
    named = {path: option_of(path) for path in options}
    return replace(changed, options={**raw.options, **named}, replaced={**before, **raw.replaced})


def notes_on(raw: RawRun) -> list[str]:
    """Return a sentence for each setting that `checked` adds or drops because of another setting."""
    notes: list[str] = []
    implied(raw, notes.append)
    return notes


def _unsaid(note: str) -> None:
    """Ignore a note."""


def implied(raw: RawRun, say: Callable[[str], None] = _unsaid) -> RawRun:
    """Return the run with the settings that its other settings imply. Invalid settings are left unchanged."""
    values = dict(raw.values)
    for imply in (
        _known_kinds, _of_other_task, _without_unknown, _for_cpu, _embeddings, _of_links, _rule, _hops,
        _times,
    ):  # fmt: skip
        values = imply(values, raw, say)
    return replace(raw, values=values)


_Values = dict[str, object]
_Say = Callable[[str], None]


def _known_kinds(values: _Values, raw: RawRun, say: _Say) -> _Values:
    """Normalize names of components: GraphSAGE is sage, Adam is adam, link_prediction is link-prediction."""
    for path, family in FAMILIES.items():
        asked = value_in(values, f"{path}.kind")
        if not isinstance(asked, str) or asked in family.kinds():
            continue
        plain = asked.lower().replace("_", "-")
        others = {name: kind for kind in family.builtin for name in kind_options(path, kind).other_kinds}
        known = others.get(plain, plain)
        if known not in family.builtin:
            continue
        implied = kind_options(path, known).other_kinds.get(plain, {})
        if all(value_in(values, f"{path}.{name}") in (None, value) for name, value in implied.items()):
            values = _with_value(values, [*path.split("."), "kind"], known)
            for name, value in implied.items():
                values = _with_value(values, [*path.split("."), name], value)
                say(f'{path} {asked} is {known} with {name} = "{value}"')
            if not implied:
                say(f"{path}.kind {asked!r} is {known}")
    return values


def _of_other_task(values: _Values, raw: RawRun, say: _Say) -> _Values:
    """Drop the task settings of a file if an option names another task."""
    kind, before = value_in(values, "task.kind"), raw.replaced.get("task.kind") or TASKS.default
    if "task.kind" not in raw.options or kind == before:
        return values
    for name in ("target", "label", "metric"):
        if value_in(values, f"task.{name}") is not None and f"task.{name}" not in raw.options:
            values = _with_value(values, ["task", name], None)
            say(f"task.{name} of {raw.source} is ignored: it is a setting of the task {before}")
    return values


def _without_unknown(values: _Values, raw: RawRun, say: _Say) -> _Values:
    """Drop settings of a file that the component named by an option does not have."""
    for path, family in FAMILIES.items():
        kind, table = value_in(values, f"{path}.kind"), value_in(values, path)
        if f"{path}.kind" not in raw.options or kind not in family.builtin or not isinstance(table, Mapping):
            continue
        known = {name: kind_options(path, name).names for name in family.builtin}
        others = frozenset().union(*known.values()) - known[str(kind)]
        unread = kind_options(path, str(kind)).unread
        for name in table:
            if (name in others or name in unread) and f"{path}.{name}" not in raw.options:
                values = _with_value(values, [*path.split("."), name], None)
                say(f"{path}.{name} of {raw.source} is ignored: {kind} has no such setting")
    return values


def _for_cpu(values: _Values, raw: RawRun, say: _Say) -> _Values:
    """Drop the GPU settings of a file if `--device cpu` is given."""
    if "device" not in raw.options or value_in(values, "device") != "cpu":
        return values
    of_gpu = [path for path in sorted(_GPU) if value_in(values, path) is not None]
    of_gpu += ["precision"] if value_in(values, "precision") == "tf32" else []
    for path in of_gpu:
        if path not in raw.options:
            values = _with_value(values, path.split("."), None)
            say(f"{path} of {raw.source} is ignored: the device is the CPU")
    return values


EMBEDDING = 32  # default width of embeddings of nodes without columns


def _embeddings(values: _Values, raw: RawRun, say: _Say) -> _Values:
    """Set the width of embeddings if other settings are about embeddings."""
    table = value_in(values, "model")
    about = {"embedding_update": "dense", "embedded_types": "missing", "unknown": 0}
    given = [n for n, default in about.items() if value_in(values, f"model.{n}") not in (None, default)]
    if not given or (isinstance(table, Mapping) and table.get("embedding") is not None):
        return values
    say(f"model.embedding is {EMBEDDING}, the default width with model.{given[0]}")
    return _with_value(values, ["model", "embedding"], EMBEDDING)


def _of_links(values: _Values, raw: RawRun, say: _Say) -> _Values:
    """Fill in settings of link prediction: dropout, decoder, and the number of links that share negatives."""
    kind = value_in(values, "model.kind")
    is_open = value_in(values, "task.kind") == LINK_PREDICTION and value_in(values, "model.dropout") is None
    model = MODELS.default if kind is None else str(kind)
    has_dropout = model in MODELS.builtin and "dropout" in kind_options("model", model).names
    if is_open and has_dropout:  # best on 3 of 4 sets (benchmarks/link_defaults.py)
        values = _with_value(values, ["model", "dropout"], 0.0)
    if value_in(values, "links.filtered") is True and value_in(values, "links.decoder") is None:
        values = _with_value(values, ["links", "decoder"], "distmult")
        say("links.decoder is distmult: filtered ranking needs a relational decoder")
    if value_in(values, "links.shared_negatives") and value_in(values, "links.negatives_group") is None:
        values = _with_value(values, ["links", "negatives_group"], _SHARING)
        say(
            f"links.negatives_group is {_SHARING}, the default with links.shared_negatives: {_SHARING} links "
            "share these negatives"
        )
    return values


_SHARING = 64  # default number of links that share negatives


def _hops(values: _Values, raw: RawRun, say: _Say) -> _Values:
    """Set one fanout per layer: repeat a single fanout, and follow an option for the number of layers."""
    layers, fanouts = value_in(values, "model.layers"), value_in(values, "sampler.fanouts")
    is_given, groups = (
        "sampler.fanouts" in raw.options,
        value_in(values, "sampler.kind") not in (None, SAMPLERS.default),
    )
    if type(layers) is not int or not 0 < layers <= _MOST_HOPS or groups:
        return values
    written = _fanouts() if fanouts is None else list(fanouts) if isinstance(fanouts, list | tuple) else []
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


_MOST_HOPS = 64


def _fanouts() -> list[object]:
    """Return the default fanouts of a run."""
    entry = field_at("sampler.fanouts")
    assert entry is not None
    assert isinstance(entry.default, tuple)
    return list(entry.default)


def _times(values: _Values, raw: RawRun, say: _Say) -> _Values:
    """Draw by the column `time` if settings are about times, and evaluate as training draws."""
    about = {"window": None, "temporal_strategy": "sample", "temporal_limit": "seed"}
    given = [name for name, of in about.items() if value_in(values, f"sampler.{name}") not in (None, of)]
    dated = value_in(values, "seeds.time") is not None and value_in(values, "sampler.time") is None
    if dated and "sampler.time" not in raw.options:
        values = _with_value(values, ["sampler", "time"], "time")
        say("sampler.time is 'time', the column that khop import writes: seeds.time needs a time limit")
    if given and value_in(values, "sampler.time") is None and "sampler.time" not in raw.options:
        values = _with_value(values, ["sampler", "time"], "time")
        say(f"sampler.time is 'time', the column that khop import writes: sampler.{given[0]} needs times")
    for name in given if value_in(values, "sampler.time") is None else ():
        if f"sampler.{name}" not in raw.options:
            values = _with_value(values, ["sampler", name], None)
            say(f"sampler.{name} of {raw.source} is ignored: it needs sampler.time")
    groups = value_in(values, "sampler.kind") not in (None, SAMPLERS.default)
    if (
        value_in(values, "sampler.time") is not None
        and not value_in(values, "evaluation.fanouts")
        and not groups
    ):
        fanouts = value_in(values, "sampler.fanouts") or _fanouts()
        values = _with_value(values, ["evaluation", "fanouts"], fanouts)
        say(
            f"evaluation.fanouts is {fanouts}, as in training: evaluation samples neighbors, because "
            "sampler.time is set"
        )
    return values


def _rule(values: _Values, raw: RawRun, say: _Say) -> _Values:
    """Set the rule that the model needs, and the columns of weights or relations that a rule reads."""
    kind, rule = value_in(values, "model.kind"), _rule_of_model(values, raw)
    asked = value_in(values, "sampler.rule.kind")
    if asked is None and rule is not None:
        values = _with_rule(values, rule)
        say(f"sampler.rule.kind is {rule}: the model {kind} needs this rule")
    elif asked in RULES.builtin:
        setting = kind_options("sampler.rule", str(asked)).column_setting
        if not setting:
            return _with_rule(values, str(asked))
        column = value_in(values, setting)
        if column is not None and value_in(values, "sampler.rule.column") is None:
            values = _with_value(values, ["sampler", "rule", "column"], column)
            say(f"sampler.rule.column is {column!r}, the column of {setting}")
    return values


def _rule_of_model(values: Mapping[str, object], raw: RawRun) -> str | None:
    """Return the kind of rule that the run's model needs; None for any rule, or an unknown model."""
    kind = value_in(values, "model.kind")
    if not isinstance(kind, str):
        return None
    if kind in MODELS.builtin:
        return kind_options("model", kind).rule
    try:
        return MODELS.load(kind, raw.permission_at("model.kind")).rule
    except ValueError:
        return None  # reported by the check of the run


def _with_rule(values: Mapping[str, object], rule: str) -> dict[str, object]:
    """Set the rule, with the weights and the replacement of the run."""
    known = kind_options("sampler.rule", rule).names if rule in RULES.builtin else frozenset[str]()
    inner = {"weight": "column", "replacement": "replacement"}
    given = {
        name: value
        for name, field in inner.items()
        if field in known
        and (value := value_in(values, f"sampler.{name}"))
        and value_in(values, f"sampler.rule.{field}") is None
    }
    full = _with_value(values, ["sampler", "rule", "kind"], rule)
    for name, value in given.items():
        full = _with_value(full, ["sampler", "rule", inner[name]], value)
        full = _with_value(full, ["sampler", name], None)
    return full


def value_in(values: Mapping[str, object], path: str) -> object:
    """Return the value at a dotted path, or None."""
    found: object = values
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def chosen(
    path: str,
    asked: str | None,
    there: Iterable[str],
    what: str,
    raw: RawRun,
    preferred: Collection[str] = (),
) -> str:
    """Return the requested name, or the only existing one. Raises ValueError if there is no such name.

    If several exist and none is requested, a single name in `preferred` is used.
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


def _with_value(values: Mapping[str, object], path: Sequence[str], value: object) -> dict[str, object]:
    """Return the values with a new one at a path; None, and one below a value, is left out."""
    name, *rest = path
    if value is None and not rest:
        return {key: other for key, other in values.items() if key != name}
    match values.get(name, {}):
        case Mapping() as table if rest:
            return {**values, name: _with_value(table, rest, value)}
    return {**values} if rest else {**values, name: value}


DEPENDENCIES = {"package depends package": 5, "package rev_depends package": 5, "*": 0}
# Tuned on the validation split; docs/debian.md has the results.
_PRESETS: Mapping[str, Mapping[str, object]] = {
    "debian": {
        "graph": "debian",
        "sampler": {"fanouts": [5, 5]},
        "model": {"hidden": 256, "dropout": 0.3, "norm": "layer"},
        "training": {"epochs": 5, "batch_size": 256, "learning_rate": 1e-2, "schedule": "linear"},
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


_GPU = {"gpu.topology", "gpu.features", "gpu.cache", "gpu.launches", "gpu.check"}
# Settings of the machine and of the output, which do not change the results of a run.
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
# Settings that may change when a run is resumed. The content of files may not: the loader's state has the
# training rows, and facts have the rest.
RESUMABLE = NEUTRAL | {
    f"training.{name}" for name in ("epochs", "max_steps", "patience", "target.metric", "target.value")
}
SCORED_FILES = ("seeds.val", "seeds.test", "links.val_negatives", "links.test_negatives")
RESUMABLE |= {"seeds.train", *SCORED_FILES}


CONFIG, CHECKPOINTS = "config.toml", "checkpoints"
DIGEST = b"# sha256 of what follows: "


def is_run_folder(path: Path) -> bool:
    """Return whether `khop train` wrote this folder."""
    return (path / CONFIG).is_file()


def saved_run(folder: Path, packages: Sequence[str], notice: Callable[[str], None]) -> RawRun:
    """Read the run in `folder`, which may name code of `packages`. ValueError if it is not a run folder.

    If config.toml was changed after khop wrote it, `notice` gets a message. Settings that determine the
    results are compared with the checkpoint; all others are used unchanged.
    """
    file = folder / CONFIG
    if not is_run_folder(folder):
        raise ValueError(
            f"{folder}: not a run folder, it has no {CONFIG}; give a folder written by khop train"
        )
    _, is_signed, rest = file.read_bytes().partition(DIGEST)
    digest, _, body = rest.partition(b"\n")
    if is_signed and digest != digest_of(body):
        notice(f"{file}: was changed or damaged after khop train wrote it; its current settings are used")
    return replace(read_toml(file), permission=Permission(tuple(packages)))


def digest_of(body: bytes) -> bytes:
    """Return the digest of the settings that `config.toml` contains."""
    return hashlib.sha256(body).hexdigest().encode()
