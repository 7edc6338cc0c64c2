"""The base of the tables of a run, and the types of their fields."""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
)
from pydantic.fields import FieldInfo

from khop.arguments import as_mapping
from khop.components import Family
from khop.loading.byte_size import byte_size
from khop.loading.device_placement import CacheSize


@dataclass(frozen=True)
class Allowed:
    """The allowed values of a field in words, if its type and limits do not say it."""

    words: str


@dataclass(frozen=True)
class Alias:
    """An alternative name of a field's option."""

    option: str


@dataclass(frozen=True)
class OptionName:
    """The name of a field's option, if it is not made from the field's path."""

    option: str


@dataclass(frozen=True)
class Default:
    """The meaning of a field's default in words, if its value does not say it."""

    words: str


@dataclass(frozen=True)
class KindOf:
    """The field names a component of a family: its kinds are the allowed values."""

    family: Family


Fanout = int | dict[str, int]  # for all edge types, or by edge type name or pattern


LARGEST = 2**31 - 1  # largest count: the product of any two counts fits the integers of the native core
LARGEST_BYTES = 2**63 - 1


def _fanouts_in_range(fanouts: tuple[Fanout, ...]) -> tuple[Fanout, ...]:
    for fanout in fanouts:
        by_type = as_mapping(fanout, lambda number: {"*": number})
        if not all(-1 <= number <= LARGEST for number in by_type.values()):
            raise ValueError("a fanout out of range")
    return fanouts


def _bytes(value: object) -> object:
    return byte_size(value, "bytes") if isinstance(value, str) else value


def _cache(value: object) -> object:
    return str(CacheSize.of(value)) if isinstance(value, str | int) and not isinstance(value, bool) else value


# TOML and options give a list, so the tuple is not strict; the numbers in it are.
Fanouts = Annotated[
    tuple[Fanout, ...],
    Field(strict=False),
    AfterValidator(_fanouts_in_range),
    Allowed(
        "a list of whole numbers, one per hop: neighbors per node, -1 for all, 0 for none, at most "
        '2147483647; or, for a hop, a table of them by edge type, as {"user buys item" = 5, "*" = 2}'
    ),
]
Window = Annotated[
    tuple[Annotated[int, Field(ge=-(2**63), lt=2**63)], ...] | None,
    Field(strict=False, min_length=2, max_length=2),
    Allowed(
        "two whole numbers [before, after], in the unit of the times, after 0 or less: [86400, 0] is a day"
    ),
]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1, le=LARGEST)]
CountOrNone = Annotated[int, Field(ge=0, le=LARGEST)]
Threads = Annotated[int, Field(ge=0, le=1024)]
Bytes = Annotated[
    int,
    Field(ge=1, le=LARGEST_BYTES),
    BeforeValidator(_bytes),
    Allowed('bytes, as 500000000, "500MB" or "2GiB", at least 1'),
]
BytesOrNone = Annotated[
    int,
    Field(ge=0, le=LARGEST_BYTES),
    BeforeValidator(_bytes),
    Allowed('bytes, as 500000000, "500MB" or "2GiB", 0 for none'),
]

CacheText = Annotated[
    str,
    BeforeValidator(_cache),
    Allowed('bytes, as "4GB", or a share of the input columns, as "20%"; 0 for none'),
]


def plain_type(annotation: Any) -> Any:  # noqa: ANN401
    """Return a field's type without None and without the limits of `Annotated`; a union of types as it is."""
    while True:
        members = [each for each in get_args(annotation) if each is not NoneType]
        if get_origin(annotation) is Annotated:
            annotation = members[0]
        elif get_origin(annotation) in (UnionType, Union) and len(members) == 1:
            (annotation,) = members
        else:
            return annotation


def metadata_of(annotation: Any) -> list[object]:  # noqa: ANN401
    """Return the limits in `Annotated`, also those of a type that may be None."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        limits = [limit for item in metadata if isinstance(item, FieldInfo) for limit in item.metadata]
        return [*metadata, *limits, *metadata_of(inner)]
    is_union = get_origin(annotation) in (UnionType, Union)
    return [item for member in get_args(annotation) if is_union for item in metadata_of(member)]


class Section(BaseModel):
    """A table of run.toml. Values are never converted: "3" is not a number, and 3.0 is not a whole number."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        defer_build=True,
    )
    option_prefix: ClassVar[str] = ""  # prefix of the option names, if another table uses the plain names
