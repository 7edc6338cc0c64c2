"""The spec of an import as frozen values: tables, columns and their encoders, labels, splits.

Editors complete and check SPEC.toml with the JSON Schema of these classes.
"""

from __future__ import annotations

import difflib
import io
import os
import warnings
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, SkipJsonSchema
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import NullableSchema, WithDefaultSchema

from khop.schema import EdgeType, edge_type_of

Name = Annotated[str, Field(min_length=1)]
Texts = Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
_ONE_HOT, _EMBEDDED = 256, 65_536  # default limits of categories


class SpecTable(BaseModel):
    """A table of an import spec. Values are never converted: "3" is not a number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _fields_exist(cls, values: Any) -> Any:
        """Raise an error with the names of all fields, which that of pydantic lacks."""
        for name in values if isinstance(values, Mapping) else ():
            if name not in cls.model_fields:
                fields = [one for one in cls.model_fields if one != "rows"]
                raise PydanticCustomError("unknown_field", "{name}", {"name": str(name), "fields": fields})
        return values


class Column(SpecTable):
    """Settings of all kinds of columns."""

    column: Name | None = None
    """Name of the column in the files, if it differs."""
    missing: Texts | tuple[()] = ()
    """Texts that are null in this column, in addition to those of the table."""

    @property
    def null_texts(self) -> tuple[str, ...]:
        """Texts that are null in this column."""
        missing: Any = self.missing  # a string in some kinds
        return () if isinstance(missing, str) else missing

    @property
    def fill(self) -> str:
        """Replacement of nulls: `missing`, or its default."""
        missing: Any = self.missing
        return str(missing if isinstance(missing, str) else type(self).model_fields["missing"].default)


class Number(Column):
    """A number, standardized with mean and deviation of the training rows."""

    kind: Literal["number"]
    scale: Literal["standard", "log", "none"] = "standard"
    """`log` standardizes sign(x) log(1 + |x|); `none` keeps the values."""
    missing: Literal["mean", "zero", "refuse"] | Texts = "mean"  # type: ignore[assignment]
    """Value of a null: the mean of training, zero, or an error; or texts that are null."""
    flag: Literal["none", "missing"] = "none"
    """`missing` adds a number that is 1 for nulls."""


class Category(Column):
    """One number per category of training rows; other categories and nulls have one number each."""

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
        """Maximum number of categories: the limit, or its default."""
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
    """A bag of words as a separate sparse column: an entry per word, weighted by rarity in training."""

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
    """A time as numbers: the age relative to training, and positions in cycles as sine and cosine."""

    kind: Literal["date"]
    parts: Annotated[tuple[DatePart, ...], Field(strict=False, min_length=1)] = ("age", "month", "weekday")
    """`age` and `year` are standardized; the others are cycles."""
    unit: Literal["s", "ms", "us", "ns"] | None = None
    """Unit of a column of integers."""
    timezone: Name | None = None
    """Time zone of times without one, such as "UTC" or "Europe/Paris"."""
    format: Name | None = None
    """Format of times in text, as in Python's strptime; default: ISO 8601."""
    missing: Literal["zero", "refuse"] | Texts = "zero"  # type: ignore[assignment]
    """A null gives zeros, or an error; or texts that are null."""


class Vector(Column):
    """A list of numbers of equal length per row, stored unchanged."""

    kind: Literal["vector"]
    separator: Name | None = None
    """Text between two numbers; needed for text columns."""
    missing: Literal["zero", "refuse"] | Texts = "refuse"  # type: ignore[assignment]
    """A null gives zeros, or an error; or texts that are null."""


class Boolean(Column):
    """True or false as 1 and 0; a null is 0 and sets the second number to 1."""

    kind: Literal["bool"]
    true: Annotated[tuple[Name, ...], Field(strict=False, min_length=1)] = ("true", "t", "yes", "1")
    """Words for true, in any case."""
    false: Annotated[tuple[Name, ...], Field(strict=False, min_length=1)] = ("false", "f", "no", "0")
    """Words for false, in any case."""


class Raw(Column):
    """A number that is stored unchanged as a separate column, not in the features."""

    kind: Literal["raw"]
    dtype: Literal["int64", "float64"] | None = None
    """Type of the stored numbers; default: that of the files, float64 for text."""


class Relation(Column):
    """The relation of an edge as an integer: 0, 1, ... in ascending order of the names."""

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


Unit = Literal["s", "ms", "us", "ns"]
Duplicates = Literal["keep", "first", "last", "sum", "refuse"]
PARTS = ("train", "val", "test")
Orphans = Literal["refuse", "drop", "add"]


def _aware(value: Any) -> Any:
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if isinstance(value, datetime) and value.tzinfo is None:
        written = f"{value.isoformat()}Z"
        warnings.warn(f"splits: {value} without a zone is taken as UTC; write {written}", stacklevel=1)
        return value.replace(tzinfo=UTC)
    return value


def _separating(delimiter: str) -> str:
    if set(delimiter) & set('"\r\n'):
        raise ValueError(f"delimiter is {delimiter!r}: must not be a quote or a line end")
    return delimiter


def _known(encoding: str) -> str:
    try:
        io.TextIOWrapper(io.BytesIO(), encoding)
    except LookupError:
        raise ValueError(
            f"encoding {encoding!r} does not exist; give a name that Python has, as latin-1, cp1252 or utf-16"
        ) from None
    return encoding


def _of_files(value: Any) -> Any:
    if isinstance(value, str) and "%" in value:
        raise ValueError(f"format is {value!r}: that of files; give the format of times as time_format")
    return value


Format = Annotated[Literal["parquet", "csv", "arrow", "json"], BeforeValidator(_of_files)]
Instant = Annotated[datetime, BeforeValidator(_aware)]


class TimeSplit(SpecTable):
    """Training before `val`, validation from `val` to before `test`, test from `test` on."""

    val: Instant | int
    """First time of validation; a whole number is in the spec's `time_unit`."""
    test: Instant | int
    """First time of test."""

    @property
    def is_counted(self) -> bool:
        """True if the times are whole numbers of the spec's unit."""
        return type(self.val) is int

    @model_validator(mode="after")
    def _ordered(self) -> TimeSplit:
        if type(self.val) is not type(self.test):
            raise ValueError("val and test must both be times, or both be whole numbers")
        if not self.val < self.test:  # type: ignore[operator]
            raise ValueError(f"val {self.val} must be before test {self.test}")
        return self


class Split(SpecTable):
    """Rows of training, validation and test: by time, by the hash of the id, by a column, or by files."""

    time: TimeSplit | None = None
    """Two points in time."""
    ratio: Annotated[tuple[float, float, float], Field(strict=False)] | None = None
    """Shares of training, validation and test, by the hash of the id."""
    column: Name | None = None
    """A column with the name of each row's split; null: in none."""
    train: str | int | bool = "train"
    """Value of `column` for training; without `column`, a file: of the table, or with an id per line. A table
    of edges that names no files has these."""
    val: str | int | bool = "val"
    """Value of `column`, or file, for validation."""
    test: str | int | bool = "test"
    """Value of `column`, or file, for test."""
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    """Seed of the hash of `ratio`."""

    @property
    def files(self) -> dict[str, str]:
        """The file of each part, if the split is by files."""
        if (self.time, self.ratio, self.column) != (None, None, None):
            return {}
        return {name: str(getattr(self, name)) for name in PARTS if name in self.model_fields_set}

    @model_validator(mode="after")
    def _one(self) -> Split:
        given = [name for name in ("time", "ratio", "column") if getattr(self, name) is not None]
        if len(given) != 1 and not self.files:
            raise ValueError(
                f"give one of time, ratio and column, or files as train = ..., not "
                f"{' and '.join(given) or 'none'}"
            )
        if self.ratio is not None and (min(self.ratio) < 0 or abs(sum(self.ratio) - 1) > 1e-9):
            raise ValueError(f"ratio {list(self.ratio)}: must be three shares of 0 or more with sum 1")
        if self.files and len(set(self.files.values())) < len(self.files):
            raise ValueError("train, val and test must be different files")
        if self.column is not None and len({self.train, self.val, self.test}) < 3:
            raise ValueError("train, val and test must be different values of the column")
        return self


class Label(SpecTable):
    """The label of a node type."""

    column: Name
    """The column with the label; null: unknown."""
    kind: Literal["class", "multi", "number"] = "class"
    """One class, any number of classes, or a number to predict."""
    classes: Annotated[tuple[str, ...], Field(strict=False)] | None = None
    """Names of all classes in their order; default: the classes of training, in ascending order."""
    separator: Name | None = None
    """Text between two classes of a multi-label column of text."""
    unit: Name | None = None
    """Unit of a number, for outputs."""
    time: Name | None = None
    """Column with the date of the label, if the nodes themselves exist before it; null for unknown labels."""

    @model_validator(mode="after")
    def _distinct(self) -> Label:
        if self.classes is not None and len(set(self.classes)) != len(self.classes):
            raise ValueError(f"classes {list(self.classes)}: a name is given twice")
        return self


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


_Names = Annotated[tuple[Name, ...], Field(strict=False, min_length=1)]
Files = Annotated[_Names, BeforeValidator(_listed, json_schema_input_type=Name | _Names)]


def _label(value: Any) -> Any:
    return {"column": value} if isinstance(value, str) else value


class Source(SpecTable):
    """A table: files, a table of a database, or a table object of this process."""

    files: Files | None = None
    """A path or a list of paths, also globs, relative to the spec: Parquet, CSV, JSON lines, Arrow."""
    format: Format | None = None
    """Format of the files; default: by their extensions."""
    database: Name | None = None
    """A DuckDB or SQLite file, a postgresql:// address without password, or env:NAME for a variable."""
    table: Name | None = None
    """Table of the database; of Postgres maybe with its schema, as sales.orders."""
    order_by: Name | None = None
    """Unique column that fixes the order of a database's rows."""
    rows: SkipJsonSchema[Any] = None
    """A pandas, polars or Arrow table, in Python."""
    where: Name | None = None
    """Rows to read: one SQL expression over the columns of a row."""
    header: Literal["yes", "no"] = "yes"
    """`no`: the first row of CSV files is data, and columns are named "0", "1", ..."""
    delimiter: Annotated[str, Field(min_length=1, max_length=4), AfterValidator(_separating)] | None = None
    """Text between two fields of CSV files, as ";" or "::"; default: a comma, or a tab for .tsv and .tab."""
    encoding: Annotated[Name, AfterValidator(_known)] = "utf-8"
    """Encoding of CSV files, as Python names it: "latin-1", "cp1252", "utf-16"."""
    missing: Texts | Mapping[Name, Texts] = ()
    """Texts that are null, in addition to the empty field: for all columns, or a list by column."""
    decimal: Literal[".", ","] = "."
    """Decimal separator of numbers in text."""
    time: Name | None = None
    """Column with the time of each row."""
    unit: Unit | None = None
    """Unit of a time column of integers."""
    timezone: Name | None = None
    """Time zone of times without one, such as "UTC"."""
    time_format: Name | None = None
    """Format of times in text, as in Python's strptime; default: ISO 8601."""

    @property
    def read_columns(self) -> list[tuple[str, AnyEdgeColumn]]:
        """The read columns by name."""
        columns = [getattr(one, "columns", {}) for one in (self, *getattr(self, "edges", ()))]
        return [item for one in columns for item in one.items()]

    @property
    def id_columns(self) -> set[str]:
        """Columns of the files with ids."""
        ends = [self, *getattr(self, "edges", ())]
        names = [getattr(one, name, None) for one in ends for name in ("id", "source", "destination")]
        return {name for name in names if name is not None}

    @property
    def numbers(self) -> set[str]:
        """Columns of the files that are read as numbers."""
        kinds = ("number", "raw", "vector")
        return {one.column or name for name, one in self.read_columns if one.kind in kinds}

    @property
    def null_texts(self) -> dict[str, tuple[str, ...]]:
        """Texts that are null, by column of the files; "" is for all columns."""
        found = dict(self.missing) if isinstance(self.missing, Mapping) else {"": self.missing}
        for name, one in self.read_columns:
            at = one.column or name
            found[at] = (*found.get(at, ()), *one.null_texts)
        return {name: texts for name, texts in found.items() if texts}

    @property
    def has_rows(self) -> bool:
        """True if the spec names rows to read."""
        return self.files is not None or self.database is not None or self.rows is not None

    @model_validator(mode="after")
    def _one_place(self) -> Source:
        given = [name for name in ("files", "database", "rows") if getattr(self, name) is not None]
        if not given and isinstance(self, Also | EdgeSpec | EdgesFrom):
            raise ValueError("files are missing: give files = [...]")
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are given: give one of them")
        if self.database is not None and (self.table is None or self.order_by is None):
            raise ValueError("a database needs table = ... and order_by = ..., a column with unique values")
        if self.database is None and (self.table or self.order_by):
            raise ValueError("table and order_by need database = ...")
        label = getattr(self, "label", None)
        has_times = self.time is not None or (isinstance(label, Label) and label.time is not None)
        if not has_times and (self.unit or self.timezone or self.time_format):
            raise ValueError("unit, timezone and time_format describe time = ..., which is not given")
        return self


def _files_of(split: Any) -> list[str]:
    """Return the files of an unchecked split by files."""
    if not isinstance(split, Mapping) or {"time", "ratio", "column"} & set(split):
        return []
    return [split[part] for part in PARTS if isinstance(split.get(part), str)]


def _names(table: Mapping[str, Any], file: str) -> bool:
    """Return True if a table names a file, directly or by a glob, or does not name rows."""
    if not {"files", "database", "rows"} & set(table):
        return True
    path, patterns = PurePath(os.path.normpath(file)), _listed(table.get("files")) or ()
    found = [PurePath(os.path.normpath(one)) for one in patterns if isinstance(one, str)]
    is_flat = [one for one in found if len(one.parts) == len(path.parts) or "**" in one.parts]
    return any(fnmatchcase(str(path), str(one)) for one in is_flat)


class Also(Source):
    """An additional table of the same nodes, joined by their ids."""

    id: Name
    """Column with the id of the node; a node without a row has nulls."""

    @model_validator(mode="after")
    def _joined(self) -> Also:
        if self.time is not None:
            raise ValueError(
                "time is not allowed in also: set it in the table of the nodes, with this column"
            )
        return self


def _several(value: Any) -> Any:
    return [value] if isinstance(value, Mapping) else value


class NodeSpec(Source):
    """A node type. Without rows, its nodes are the ids that edges name, in order of first appearance."""

    id: Name | None = None
    """Column with the unique id of each node; default: id, if there are files."""
    id_type: Literal["string", "integer"] | None = None
    """Type of the ids; default: that of the files, text for CSV."""
    ids: Literal["keep", "none"] = "keep"
    """`none` stores no index from ids to nodes."""
    also: Annotated[
        tuple[Also, ...],
        Field(strict=False),
        BeforeValidator(_several, json_schema_input_type=Also | tuple[Also, ...]),
    ] = ()
    """Further tables of the same nodes: their columns are used as those of the first table."""
    columns: Mapping[Name, AnyColumn] = Field(default_factory=dict)
    """Features: name to kind, or to a table with kind and options."""
    label: Annotated[Label | None, BeforeValidator(_label, json_schema_input_type=Name | Label)] = None
    """The label: a column of classes, or a table."""
    split: Split | None = None
    """The split of the labels, if it differs from [splits]."""

    @property
    def numbers(self) -> set[str]:
        """Columns of the files that are read as numbers."""
        label = {self.label.column} if self.label is not None and self.label.kind == "number" else set[str]()
        return super().numbers | label

    @model_validator(mode="before")
    @classmethod
    def _with_id(cls, values: Any) -> Any:
        """Use the column `id` if a table does not name one."""
        has_rows = isinstance(values, Mapping) and {"files", "database", "rows"} & set(values)
        return {"id": "id", **values} if has_rows else values

    @model_validator(mode="after")
    def _complete(self) -> NodeSpec:
        others = (self.id, self.columns, self.label, self.split, self.where, self.also)
        if not self.has_rows and any(others):
            raise ValueError("files are missing: give files = [...], or remove all other fields")
        return self


class EdgeRules(SpecTable):
    """Ends of edges and the handling of missing ends, nulls and duplicates."""

    source: Name
    """Column with the id of each edge's source."""
    destination: Name
    """Column with the id of each edge's destination."""
    reverse: Name | None = None
    """Relation of the reverse edge type to add."""
    duplicates: Duplicates = "keep"
    """Edges with the same ends: keep all, the first, the last, one with summed columns, or an error. The
    last and the sum are those of each part, if edges are split; so is the first, if not by time."""
    orphans: Orphans = "refuse"
    """Edges with an id that no node has: an error, left out, or nodes to add."""
    nulls: Literal["refuse", "drop"] = "refuse"
    """Edges with a null end: an error, or left out."""
    relation: Name | None = None
    """Column with the relation of each edge as text: its codes become the edge column `relation`."""
    columns: Mapping[Name, AnyEdgeColumn] = Field(default_factory=dict)
    """Columns of the edges: numbers, raw and relations."""
    split: Split | None = None
    """The split of the edges as links to predict."""

    @model_validator(mode="before")
    @classmethod
    def _with_relation(cls, values: Any) -> Any:
        """Read `relation = "column"` as a column of this kind."""
        if not isinstance(values, Mapping) or not isinstance(values.get("relation"), str):
            return values
        columns = values.get("columns", {})
        if not isinstance(columns, Mapping) or "relation" in columns:
            raise ValueError("relation and columns.relation are given: give one of them")
        return {
            **values,
            "columns": {**columns, "relation": {"kind": "relation", "column": values["relation"]}},
        }

    @model_validator(mode="after")
    def _dense(self) -> EdgeRules:
        if self.duplicates == "sum" and any(one.kind == "relation" for one in self.columns.values()):
            raise ValueError(
                'duplicates is "sum": relations cannot be added; give "keep", or make edge types'
            )
        sparse = [name for name, column in self.columns.items() if column.kind == "words"]
        if sparse:
            raise ValueError(f'columns.{sparse[0]}.kind is "words": columns of edges are dense; give "text"')
        for name, column in self.columns.items():
            if isinstance(column, Category) and column.encoding == "embedding":
                raise ValueError(
                    f'columns.{name}.encoding is "embedding": columns of edges are dense; remove it'
                )
        return self


class EdgeSpec(Source, EdgeRules):
    """An edge type with its table."""

    @model_validator(mode="before")
    @classmethod
    def _of_split(cls, values: Any) -> Any:
        """Use the files of the split if the table does not name rows."""
        files = _files_of(values.get("split")) if isinstance(values, Mapping) else []
        has_rows = not files or bool({"files", "database", "rows"} & set(values))
        return values if has_rows else {**values, "files": files}


class TypedEdges(EdgeRules):
    """One edge type of a table with several."""

    type: Name
    """Edge type as three words, "user buys item"."""
    where: Name | None = None
    """Rows of this type: one SQL expression, in addition to that of the table."""


class EdgesFrom(Source):
    """Several edge types of one table."""

    edges: Annotated[tuple[TypedEdges, ...], Field(strict=False, min_length=1)]
    """The edge types."""


class Spec(SpecTable):
    """An import: tables of nodes and edges that become a graph folder."""

    time_unit: Unit | None = None
    """Unit in which all times are stored; default: the finest of the time columns."""
    splits: Split | None = None
    """The split of all labels; a split by time also limits the rows that statistics see."""
    nodes: Annotated[Mapping[Name, NodeSpec], Field(min_length=1)]
    """Node types."""
    edges: Mapping[Name, EdgeSpec] = Field(default_factory=dict)
    """Edge types, by three words: "user buys item"."""
    edges_from: Annotated[tuple[EdgesFrom, ...], Field(strict=False)] = ()
    """Tables with several edge types."""

    @model_validator(mode="before")
    @classmethod
    def _with_ends(cls, values: Any) -> Any:
        """Add node types that only edge types name; their nodes are the ids of the edges."""
        nodes = values.get("nodes", {}) if isinstance(values, Mapping) else None
        if not isinstance(nodes, Mapping) or set(values) - set(cls.model_fields):
            return values
        edges, several = values.get("edges"), values.get("edges_from")
        names = list(edges) if isinstance(edges, Mapping) else []
        for table in several if isinstance(several, list | tuple) else ():
            typed = table.get("edges") if isinstance(table, Mapping) else None
            names += [one.get("type") for one in typed or () if isinstance(one, Mapping)]
        words = [name.split() for name in names if isinstance(name, str) and len(name.split()) == 3]
        ends = dict.fromkeys(end for one in words for end in (one[0], one[2]) if end not in nodes)
        added = [end for end in ends if not difflib.get_close_matches(end, list(nodes), 1, 0.75)]
        for end in added:
            warnings.warn(
                f"nodes.{end} is not in the spec: its nodes are the ids of the edges, "
                "or for later data those of the graph",
                stacklevel=1,
            )
        return {**values, "nodes": {**nodes, **{end: {} for end in added}}} if added else values

    @model_validator(mode="before")
    @classmethod
    def _split_edges_by_files(cls, values: Any) -> Any:
        """Give [splits] by files to the edge types of these files."""
        splits = values.get("splits") if isinstance(values, Mapping) else None
        tables = values.get("edges") if isinstance(values, Mapping) else None
        files = _files_of(splits)
        if not isinstance(tables, Mapping) or not files:
            return values
        found = {
            name: {"split": splits, **one}
            for name, one in tables.items()
            if isinstance(one, Mapping) and _names(one, files[0])
        }
        return {**values, "edges": {**tables, **found}} if found else values

    @model_validator(mode="after")
    def _consistent(self) -> Spec:
        seen: set[EdgeType] = set()
        for edge_type, rules in self.edge_types():
            for end in (edge_type[0], edge_type[2]):
                if end not in self.nodes:
                    (close,) = difflib.get_close_matches(end, list(self.nodes), 1, 0)
                    raise ValueError(
                        f"edge type {' '.join(edge_type)!r}: no node type {end!r}; did you mean {close}? "
                        f"Otherwise add [nodes.{end}]"
                    )
            reverse = () if rules.reverse is None else ((edge_type[2], rules.reverse, edge_type[0]),)
            for one in (edge_type, *reverse):
                if one in seen:
                    raise ValueError(f"edge type {' '.join(one)!r} is given twice; rename one")
                seen.add(one)
        of_edges = (rules.split for _, rules in self.edge_types())
        splits = [self.splits, *(node.split for node in self.nodes.values()), *of_edges]
        times = [split.time for split in splits if split is not None and split.time is not None]
        if self.time_unit is None and any(time.is_counted for time in times):
            raise ValueError('time_unit is missing: split times are whole numbers; give time_unit = "s"')
        return self

    def edge_tables(self) -> Iterator[tuple[str, EdgeType, EdgeRules, EdgeSpec | EdgesFrom]]:
        """Yield the edge types in the order of the spec, each with its key, its rules, and its table."""
        for name, edge in self.edges.items():
            yield f'edges."{name}"', edge_type_of(name), edge, edge
        for number, table in enumerate(self.edges_from):
            for at, typed in enumerate(table.edges):
                yield f"edges_from[{number}].edges[{at}]", edge_type_of(typed.type), typed, table

    def edge_types(self) -> Iterator[tuple[EdgeType, EdgeRules]]:
        """Yield the edge types in the order of the spec, with their rules."""
        return ((edge_type, rules) for _, edge_type, rules, _ in self.edge_tables())

    def with_edges(
        self, rules: Mapping[EdgeType, Mapping[str, Any]], tables: Mapping[EdgeType, Mapping[str, Any]]
    ) -> Spec:
        """Return a spec with other values of some fields of edge types and their tables."""
        edges = {}
        for name, edge in self.edges.items():
            of = edge_type_of(name)
            edges[name] = edge.model_copy(update={**rules.get(of, {}), **tables.get(of, {})})
        several = []
        for table in self.edges_from:
            types = {edge_type_of(one.type): one for one in table.edges}
            typed = tuple(one.model_copy(update={**rules.get(of, {})}) for of, one in types.items())
            update = {name: value for of in types for name, value in tables.get(of, {}).items()}
            several.append(table.model_copy(update={"edges": typed, **update}))
        return self.model_copy(update={"edges": edges, "edges_from": tuple(several)})

    def node_split(self, node_type: str) -> Split | None:
        """Return the split of a node type's labels: the type's, or that of [splits]."""
        own = self.nodes[node_type].split
        return own or self.splits


class _ForToml(GenerateJsonSchema):
    """Schemas without null, which TOML does not have."""

    def nullable_schema(self, schema: NullableSchema) -> JsonSchemaValue:
        """Return the schema of the values other than null."""
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: WithDefaultSchema) -> JsonSchemaValue:
        """Omit a default of null."""
        found = super().default_schema(schema)
        return {name: value for name, value in found.items() if name != "default" or value is not None}


def spec_schema() -> dict[str, Any]:
    """Return the JSON Schema of a spec, with all kinds of columns and their options."""
    schema = Spec.model_json_schema(schema_generator=_ForToml)
    return {"$schema": _ForToml.schema_dialect, **schema, "title": "Tables that khop import reads"}
