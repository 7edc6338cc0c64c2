"""The spec of an import as frozen values: tables of nodes and edges, their columns, labels and splits."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from khop.importing.column_spec import AnyColumn, Category, Name, SpecTable
from khop.schema import EdgeType, edge_type_of

Unit = Literal["s", "ms", "us", "ns"]
Duplicates = Literal["keep", "first", "last", "sum", "refuse"]
Orphans = Literal["refuse", "drop", "add"]


def _aware(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is None:
        raise ValueError("has no time zone; append one, as 2020-09-20T00:00:00Z")
    return value


def _separating(delimiter: str) -> str:
    if delimiter in '"\r\n':
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


Instant = Annotated[datetime, BeforeValidator(_aware)]


class TimeSplit(SpecTable):
    """Training before `val`, validation before `test`, test from there on."""

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
    """Rows of training, validation and test: by time, by the hash of the id, or by a column."""

    time: TimeSplit | None = None
    """Two points in time."""
    ratio: Annotated[tuple[float, float, float], Field(strict=False)] | None = None
    """Shares of training, validation and test, by the hash of the id."""
    column: Name | None = None
    """A column with the name of each row's split; null: in none."""
    train: str | int | bool = "train"
    """Value of `column` for training."""
    val: str | int | bool = "val"
    """Value of `column` for validation."""
    test: str | int | bool = "test"
    """Value of `column` for test."""
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    """Seed of the hash of `ratio`."""

    @model_validator(mode="after")
    def _one(self) -> Split:
        given = [name for name in ("time", "ratio", "column") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of time, ratio and column, not {' and '.join(given) or 'none'}")
        if self.ratio is not None and (min(self.ratio) < 0 or abs(sum(self.ratio) - 1) > 1e-9):
            raise ValueError(f"ratio {list(self.ratio)}: must be three shares of 0 or more with sum 1")
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

    @model_validator(mode="after")
    def _distinct(self) -> Label:
        if self.classes is not None and len(set(self.classes)) != len(self.classes):
            raise ValueError(f"classes {list(self.classes)}: a name is given twice")
        return self


def _label(value: Any) -> Any:
    return {"column": value} if isinstance(value, str) else value


class Source(SpecTable):
    """A table: files, a table of a database, or a table object of this process."""

    files: Annotated[tuple[Name, ...], Field(strict=False, min_length=1)] | None = None
    """Paths and globs, relative to the spec: Parquet, CSV (also .gz, .zst), Arrow."""
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
    delimiter: Annotated[str, Field(min_length=1, max_length=1), AfterValidator(_separating)] | None = None
    """Character between two fields of CSV files; default: found in the first rows."""
    encoding: Annotated[Name, AfterValidator(_known)] = "utf-8"
    """Encoding of CSV files, as Python names it: "latin-1", "cp1252", "utf-16"."""
    time: Name | None = None
    """Column with the time of each row."""
    unit: Unit | None = None
    """Unit of a time column of integers."""
    timezone: Name | None = None
    """Time zone of times without one, such as "UTC"."""
    format: Name | None = None
    """Format of times in text, as in Python's strptime; default: ISO 8601."""

    @property
    def has_rows(self) -> bool:
        """True if the spec names rows to read."""
        return self.files is not None or self.database is not None or self.rows is not None

    @model_validator(mode="after")
    def _one_place(self) -> Source:
        given = [name for name in ("files", "database", "rows") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are given: give one of them")
        if self.database is not None and (self.table is None or self.order_by is None):
            raise ValueError("a database needs table = ... and order_by = ..., a column with unique values")
        if self.database is None and (self.table or self.order_by):
            raise ValueError("table and order_by need database = ...")
        if self.time is None and (self.unit or self.timezone or self.format):
            raise ValueError("unit, timezone and format describe time = ..., which is not given")
        return self


class NodeSpec(Source):
    """A node type. Without rows, its nodes are the ids that edges name, in order of first appearance."""

    id: Name | None = None
    """Column with the unique id of each node."""
    id_type: Literal["string", "integer"] | None = None
    """Type of the ids; default: that of the files, text for CSV."""
    ids: Literal["keep", "none"] = "keep"
    """`none` stores no index from ids to nodes."""
    columns: Mapping[Name, AnyColumn] = Field(default_factory=dict)
    """Features: name to kind, or to a table with kind and options."""
    label: Annotated[Label | None, BeforeValidator(_label, json_schema_input_type=Name | Label)] = None
    """The label: a column of classes, or a table."""
    split: Split | None = None
    """The split of the labels, if it differs from [splits]."""

    @model_validator(mode="after")
    def _complete(self) -> NodeSpec:
        if self.has_rows and self.id is None:
            raise ValueError("id is missing: name the column with the id of each node")
        if not self.has_rows and (self.id or self.columns or self.label or self.split or self.where):
            raise ValueError("files are missing: give files = [...], or leave all other fields out")
        return self


class EdgeRules(SpecTable):
    """Ends of edges and the treatment of problems with them."""

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
    columns: Mapping[Name, AnyColumn] = Field(default_factory=dict)
    """Columns of the edges: numbers and raw."""
    split: Split | None = None
    """The split of the edges as links to predict."""

    @model_validator(mode="after")
    def _dense(self) -> EdgeRules:
        sparse = [name for name, column in self.columns.items() if column.kind == "words"]
        if sparse:
            raise ValueError(f'columns.{sparse[0]}.kind is "words": columns of edges are dense; give "text"')
        for name, column in self.columns.items():
            if isinstance(column, Category) and column.encoding == "embedding":
                raise ValueError(
                    f'columns.{name}.encoding is "embedding": columns of edges are dense; leave it out'
                )
        return self


class EdgeSpec(Source, EdgeRules):
    """An edge type with its table."""

    @model_validator(mode="after")
    def _with_rows(self) -> EdgeSpec:
        if not self.has_rows:
            raise ValueError("files are missing: give files = [...]")
        return self


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

    @model_validator(mode="after")
    def _with_rows(self) -> EdgesFrom:
        if not self.has_rows:
            raise ValueError("files are missing: give files = [...]")
        return self


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

    @model_validator(mode="after")
    def _consistent(self) -> Spec:
        seen: set[EdgeType] = set()
        for edge_type, rules in self.edge_types():
            for end in (edge_type[0], edge_type[2]):
                if end not in self.nodes:
                    raise ValueError(
                        f"edge type {' '.join(edge_type)!r}: no node type {end!r}; there are "
                        f"{', '.join(self.nodes)}; add [nodes.{end}]"
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

    def edge_types(self) -> Iterator[tuple[EdgeType, EdgeRules]]:
        """Yield the edge types in the order of the spec, with their rules."""
        for name, edge in self.edges.items():
            yield edge_type_of(name), edge
        for table in self.edges_from:
            for typed in table.edges:
                yield edge_type_of(typed.type), typed

    def node_split(self, node_type: str) -> Split | None:
        """Return the split of a node type's labels: its own, or that of [splits]."""
        own = self.nodes[node_type].split
        return own or self.splits
