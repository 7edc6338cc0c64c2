"""The fields of a run as a flat list, from which options, errors and docs/command.md are generated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo

from khop.config.kinds import FAMILIES
from khop.config.run_type import run_type
from khop.config.section import (
    LARGEST,
    LARGEST_BYTES,
    Alias,
    Allowed,
    Default,
    Fanout,
    KindOf,
    OptionName,
    Section,
    metadata_of,
    plain_type,
)
from khop.config.values import RunConfig

Value = str | int | float | bool | tuple[Fanout, ...] | tuple[str, ...] | tuple[float, ...] | None
# Options that are no fields: the option of a field in a component of one's own has another name.
OPTIONS_OF_COMMANDS = frozenset(
    {
        "--help",
        "--help-all",
        "--debug",
        "--resume",
        "--procs",
        "--oversubscribe",
        "--json",
        "--steps",
        "--allow-code",
    }
)


@dataclass(frozen=True)
class RunField:
    """One setting of a run."""

    path: str  # dotted, as in run.toml: "training.epochs"
    option: str  # on the command line: "--epochs"
    aliases: tuple[str, ...]  # other names of the option: "--lr"
    kind: type  # str, int, float, bool or tuple
    item: type  # of a tuple: str, float, or int, also for a list of fanouts
    choices: tuple[str, ...]  # the allowed words; empty if the field takes other values
    allowed: str  # the allowed values, in words
    is_worded: bool  # the field's declaration words them, also for its own validators
    description: str
    default: Value
    default_words: str  # the meaning of the default; empty if its value says it
    required: bool

    @property
    def section(self) -> str:
        """The table of run.toml that contains the field; "" for the top level."""
        return self.path.rpartition(".")[0]


@cache
def run_fields(run: type[Section] | None = None) -> tuple[RunField, ...]:
    """Return every field of a run, with tables in the order of their definition.

    `run` is the class of a run with components that it names, or another table; without it the components
    are khop's defaults.
    """
    default = _fields_of(run_type({}), "")
    if run is None:
        return default
    if not issubclass(run, RunConfig):
        return _fields_of(run, "")
    paths = {entry.path for entry in default}
    taken = {name for entry in default for name in (entry.option, *entry.aliases)} | OPTIONS_OF_COMMANDS
    found: list[RunField] = []
    for entry in _fields_of(run, ""):
        found.append(entry if entry.path in paths else _with_free_option(entry, taken))
        taken.add(found[-1].option)
    return tuple(found)


@cache
def kind_fields() -> dict[str, tuple[RunField, tuple[str, ...]]]:
    """Return by path the fields that only some of khop's components have, each with their kinds."""
    default = {entry.path for entry in run_fields()}
    found: dict[str, tuple[RunField, tuple[str, ...]]] = {}
    for path, (family, _) in FAMILIES.items():
        for kind in family.builtin:
            values: object = {"kind": kind}
            for name in reversed(path.split(".")):
                values = {name: values}
            assert isinstance(values, dict)
            for entry in run_fields(run_type(values)):
                if entry.path not in default and entry.section == path:
                    found[entry.path] = entry, (*found.get(entry.path, (entry, ()))[1], kind)
    return found


@cache
def sections(run: type[Section] | None = None) -> dict[str, type[Section]]:
    """Return the tables of run.toml by path; "" is the top level."""
    run = run or run_type({})
    return {"": run, **dict(_tables(run, ""))}


def field_at(path: str, run: type[Section] | None = None) -> RunField | None:
    """Return the field at a dotted path, or None."""
    return next((field for field in run_fields(run) if field.path == path), None)


def value_at(config: RunConfig, path: str) -> Value:
    """Return the value of a run at a dotted path; None in a table that is left out."""
    value: object = config
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value  # type: ignore[return-value]


def _fields_of(section: type[Section], prefix: str) -> tuple[RunField, ...]:
    found: list[RunField] = []
    for name, info in section.model_fields.items():
        if table := _section(info.annotation):
            found += _fields_of(table, f"{prefix}{name}.")
        else:
            found.append(_run_field(section, prefix, name, info))
    return tuple(found)


def _tables(section: type[Section], prefix: str) -> Iterator[tuple[str, type[Section]]]:
    for name, info in section.model_fields.items():
        if table := _section(info.annotation):
            yield prefix + name, table
            yield from _tables(table, f"{prefix}{name}.")


def _section(annotation: object) -> type[Section] | None:
    inner = plain_type(annotation)
    return inner if isinstance(inner, type) and issubclass(inner, Section) else None


def _with_free_option(entry: RunField, taken: Set[str]) -> RunField:
    """Put the name of the table in front of an option that another field or the command has."""
    if entry.option not in taken:
        return entry
    return replace(entry, option=f"--{entry.section.rpartition('.')[2]}-{entry.option.removeprefix('--')}")


def _run_field(section: type[Section], prefix: str, name: str, info: FieldInfo) -> RunField:
    annotation = plain_type(info.annotation)
    metadata = [*info.metadata, *metadata_of(info.annotation)]
    family = next((item.family for item in metadata if isinstance(item, KindOf)), None)
    choices = _words(annotation)
    if family is not None:
        choices = family.kinds()
    kind = str if choices else get_origin(annotation) or annotation
    assert isinstance(kind, type)
    items = get_args(annotation) if kind is tuple else ()
    return RunField(
        path=prefix + name,
        option=_option_name(section, prefix, name, info),
        aliases=tuple(item.option for item in metadata if isinstance(item, Alias)),
        kind=kind,
        item=items[0] if items and items[0] in (str, float) else int,
        choices=choices,
        allowed=family.allowed() if family else _allowed(kind, choices, metadata),
        is_worded=any(isinstance(item, Allowed) for item in metadata),
        description=" ".join((info.description or "").split()),
        default=None if info.is_required() else info.get_default(call_default_factory=True),
        default_words=next((item.words for item in metadata if isinstance(item, Default)), ""),
        required=info.is_required(),
    )


def _words(annotation: object) -> tuple[str, ...]:
    """Return the allowed words of a Literal or StrEnum; empty for other types."""
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return tuple(annotation)
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _option_name(section: type[Section], prefix: str, name: str, info: FieldInfo) -> str:
    for item in info.metadata:
        if isinstance(item, OptionName):
            return item.option
    if name == "kind":
        return f"--{prefix.rstrip('.').rpartition('.')[2]}"
    return f"--{section.option_prefix}{name.replace('_', '-')}"


_NOUNS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list, on the command line separated by commas",
}


def _allowed(kind: type, choices: tuple[str, ...], metadata: Sequence[object]) -> str:
    for item in metadata:
        if isinstance(item, Allowed):
            return item.words
    if choices:
        return "one of " + ", ".join(choices) if len(choices) > 1 else choices[0]
    limits = [words for item in metadata if (words := _limit(item))]
    return " ".join([_NOUNS[kind], " and ".join(limits)]).strip()


def _limit(item: object) -> str:
    match item:
        case Ge(ge=bound):
            return f"of at least {bound}"
        case Gt(gt=bound):
            return f"above {bound}"
        case Le(le=bound):
            return "" if bound in (LARGEST, LARGEST_BYTES) else f"at most {bound}"
        case Lt(lt=bound):
            return f"below {bound}"
        case MinLen():
            return "that is not empty"
    return ""
