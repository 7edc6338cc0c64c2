"""Kinds of columns in an import spec: the encoder of each column and its options."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Name = Annotated[str, Field(min_length=1)]
Missing = Literal["mean", "zero", "refuse"]
_ONE_HOT, _EMBEDDED = 256, 65_536  # most categories by default


class SpecTable(BaseModel):
    """A table of an import spec. Values are never converted: "3" is not a number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class Column(SpecTable):
    """Settings of all kinds of columns."""

    column: Name | None = None
    """Name of the column in the files, if it differs."""


class Number(Column):
    """A number, standardized with mean and deviation of the training rows."""

    kind: Literal["number"]
    scale: Literal["standard", "log", "none"] = "standard"
    """`log` standardizes sign(x) log(1 + |x|); `none` keeps the values."""
    missing: Missing = "mean"
    """Value of a null: the mean of training, zero, or an error."""
    flag: Literal["none", "missing"] = "none"
    """`missing` adds a number that is 1 for nulls."""


class Category(Column):
    """One number per category that training has; other categories and nulls have one number each."""

    kind: Literal["category"]
    encoding: Literal["one-hot", "embedding"] = "one-hot"
    """`embedding` stores the category alone, for many categories; the first layer learns a row for each."""
    limit: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    """Most categories; the most frequent of training, ties by first appearance. Default: 256; with
    `embedding` 65,536."""
    min_count: Annotated[int, Field(ge=1)] = 1
    """Fewest training rows of a category."""

    @property
    def most(self) -> int:
        """Most categories: the limit, or its default."""
        return self.limit or (_ONE_HOT if self.encoding == "one-hot" else _EMBEDDED)

    @model_validator(mode="after")
    def _fits(self) -> Category:
        if self.encoding == "one-hot" and self.most > _EMBEDDED:
            raise ValueError(
                f"limit {self.limit:,}: rows of one-hot have at most {_EMBEDDED:,} numbers; give encoding = "
                '"embedding"'
            )
        return self


class Multi(Column):
    """Several categories per row: a list column, or text with a separator."""

    kind: Literal["multi"]
    separator: Name | None = None
    """Text between two categories, such as "|"; needed for text columns."""
    limit: Annotated[int, Field(ge=1, le=65536)] = 256
    """Most categories; the most frequent of training, ties by first appearance."""
    min_count: Annotated[int, Field(ge=1)] = 1
    """Fewest training rows of a category."""


class Text(Column):
    """Words hashed into `words` buckets, weighted by rarity in training, projected to `width` numbers."""

    kind: Literal["text"]
    words: Annotated[int, Field(ge=2, le=1 << 24)] = 50_000
    """Buckets for words. Buckets without a training word count as unknown and add nothing."""
    width: Annotated[int, Field(ge=1, le=4096)] = 64
    """Numbers per row."""
    bigrams: Literal["none", "all"] = "none"
    """`all` counts pairs of adjacent words too."""


class Words(Column):
    """A bag of words as a sparse column of its own: an entry per word, weighted by rarity in training."""

    kind: Literal["words"]
    words: Annotated[int, Field(ge=2, le=1 << 24)] = 50_000
    """Numbers of a row: buckets for words. Words of a bucket that training lacks are left out."""
    separator: Name | None = None
    """Text between two entries of a text column of lists, such as "|"; default: text is split into words."""
    bigrams: Literal["none", "all"] = "none"
    """`all` has pairs of adjacent words of a text too."""
    values: Literal["rarity", "one"] = "rarity"
    """Value of an entry: larger for rare words, with a sum of squares of 1 per row, or 1."""
    most: Annotated[int, Field(ge=1, le=65536)] = 256
    """Most entries of a row, the rarest; a row has room for the longest of training."""


DatePart = Literal["age", "year", "month", "day", "weekday", "hour"]


class Date(Column):
    """A time as numbers: the age relative to training, and places on cycles as sine and cosine."""

    kind: Literal["date"]
    parts: Annotated[tuple[DatePart, ...], Field(strict=False, min_length=1)] = ("age", "month", "weekday")
    """`age` and `year` are standardized; the others are cycles."""
    unit: Literal["s", "ms", "us", "ns"] | None = None
    """Unit of a column of integers."""
    timezone: Name | None = None
    """Time zone of times without one, such as "UTC" or "Europe/Paris"."""
    format: Name | None = None
    """Format of times in text, as in Python's strptime; default: ISO 8601."""
    missing: Literal["zero", "refuse"] = "zero"
    """A null gives zeros, or an error."""


class Vector(Column):
    """A list of numbers of equal length per row, kept as it is."""

    kind: Literal["vector"]
    separator: Name | None = None
    """Text between two numbers; needed for text columns."""
    missing: Literal["zero", "refuse"] = "refuse"
    """A null gives zeros, or an error."""


class Boolean(Column):
    """True or false as 1 and 0; a null is 0 and sets the second number to 1."""

    kind: Literal["bool"]
    true: Annotated[tuple[Name, ...], Field(strict=False, min_length=1)] = ("true", "t", "yes", "1")
    """Words for true, in any case."""
    false: Annotated[tuple[Name, ...], Field(strict=False, min_length=1)] = ("false", "f", "no", "0")
    """Words for false, in any case."""


class Raw(Column):
    """A number that is stored unchanged as a column of its own, not in the features."""

    kind: Literal["raw"]
    dtype: Literal["int64", "float64"] | None = None
    """Type of the stored numbers; default: that of the files, float64 for text."""


class Relation(Column):
    """The relation of an edge, text, as an integer: 0, 1, ... in ascending order of the names."""

    kind: Literal["relation"]


def _named_kind(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


Kind = Literal["number", "category", "multi", "text", "words", "date", "vector", "bool", "raw"]
_Column = Number | Category | Multi | Text | Words | Date | Vector | Boolean | Raw
_OfNodes = Annotated[_Column, Field(discriminator="kind")]
_OfEdges = Annotated[_Column | Relation, Field(discriminator="kind")]
AnyColumn = Annotated[_OfNodes, BeforeValidator(_named_kind, json_schema_input_type=Kind | _OfNodes)]
AnyEdgeColumn = Annotated[
    _OfEdges, BeforeValidator(_named_kind, json_schema_input_type=Kind | Literal["relation"] | _OfEdges)
]
