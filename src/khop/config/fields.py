"""The fields of a run as a flat list, from which options, errors and docs/command.md are generated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo

from khop.config.values import (
    LARGEST,
    LARGEST_BYTES,
    Alias,
    Allowed,
    Default,
    Fanout,
    OptionName,
    RunConfig,
    Section,
)

Value = str | int | float | bool | tuple[Fanout, ...] | None


@dataclass(frozen=True)
class RunField:
    """One setting of a run."""

    path: str  # dotted, as in run.toml: "training.epochs"
    option: str  # on the command line: "--epochs"
    aliases: tuple[str, ...]  # other names of the option: "--lr"
    kind: type  # str, int, float, bool, or tuple for a list of fanouts
    choices: tuple[str, ...]  # the allowed words; empty if the field takes other values
    allowed: str  # the allowed values, in words
    description: str
    default: Value
    default_words: str  # the meaning of the default; empty if its value says it
    required: bool

    @property
    def section(self) -> str:
        """The table of run.toml that contains the field; "" for the top level."""
        return self.path.rpartition(".")[0]


@cache
def run_fields() -> tuple[RunField, ...]:
    """Return every field of RunConfig, with tables in the order of their definition."""
    return tuple(_walk(RunConfig, ""))


@cache
def sections() -> dict[str, type[Section]]:
    """Return the tables of run.toml by name; "" is the top level."""
    found: dict[str, type[Section]] = {"": RunConfig}
    for name, info in RunConfig.model_fields.items():
        if table := _section(info.annotation):
            found[name] = table
    return found


def field_at(path: str) -> RunField | None:
    """Return the field at a dotted path, or None."""
    return next((field for field in run_fields() if field.path == path), None)


def value_at(config: RunConfig, path: str) -> Value:
    """Return the value of a run at a dotted path."""
    section, _, name = path.rpartition(".")
    value: Value = getattr(getattr(config, section) if section else config, name)
    return value


def _walk(section: type[Section], prefix: str) -> Iterator[RunField]:
    for name, info in section.model_fields.items():
        if table := _section(info.annotation):
            yield from _walk(table, f"{name}.")
        else:
            yield _run_field(section, prefix, name, info)


def _section(annotation: object) -> type[Section] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def _run_field(section: type[Section], prefix: str, name: str, info: FieldInfo) -> RunField:
    annotation = _without_none(info.annotation)
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()
    kind = str if choices else get_origin(annotation) or annotation
    assert isinstance(kind, type)
    return RunField(
        path=prefix + name,
        option=_option_name(section, prefix, name, info),
        aliases=tuple(item.option for item in info.metadata if isinstance(item, Alias)),
        kind=kind,
        choices=choices,
        allowed=_allowed(kind, choices, info),
        description=" ".join((info.description or "").split()),
        default=None if info.is_required() else info.default,
        default_words=next((item.words for item in info.metadata if isinstance(item, Default)), ""),
        required=info.is_required(),
    )


def _option_name(section: type[Section], prefix: str, name: str, info: FieldInfo) -> str:
    for item in info.metadata:
        if isinstance(item, OptionName):
            return item.option
    bare = prefix.rstrip(".") if name == "kind" else name
    return f"--{section.option_prefix}{bare.replace('_', '-')}"


def _without_none(annotation: object) -> object:
    if get_origin(annotation) not in (UnionType, Union):
        return annotation
    (inner,) = (member for member in get_args(annotation) if member is not NoneType)
    return inner


_NOUNS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def _allowed(kind: type, choices: tuple[str, ...], info: FieldInfo) -> str:
    for item in info.metadata:
        if isinstance(item, Allowed):
            return item.words
    if choices:
        return "one of " + ", ".join(choices) if len(choices) > 1 else choices[0]
    limits = [words for item in info.metadata if (words := _limit(item))]
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
