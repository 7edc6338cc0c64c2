"""Opened tables of a spec: the rows that `where` selects, with the requested columns.

`where` is an SQL expression over the columns of a row, evaluated by DuckDB on Arrow batches.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from threading import Lock, local
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.data.tables.databases import Databases, database_of
from khop.data.tables.files import CsvTable, Dialect, InputFile, MemoryTable, find_files, open_files, quoted
from khop.data.tables.labels import check_ids, keys_of
from khop.data.tables.packages import (
    connected,
    duckdb,
    first_failing,
    is_text,
    numpy_of,
    pa,
    pc,
    shown,
    without_blanks,
)
from khop.data.tables.read_spec import nearest
from khop.data.tables.rows import FileTable, Piece, Table, TableRows, check_columns, read_pieces
from khop.data.tables.spec import Also, Source, Split
from khop.data.tables.times import TimeFormat, found_unit
from khop.graph.atomic import Meter, ProgressCallback
from khop.kernels.id_table import IdTable, id_table

_REFUSED = {
    "LAMBDA": "a lambda",
    "PARAMETER": "a parameter",
    "STAR": "a star",
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
}
_FIXED = """
SELECT function_name FROM duckdb_functions() WHERE function_type IN ('scalar', 'macro') GROUP BY function_name
HAVING bool_or(stability = 'CONSISTENT' OR function_type = 'macro')
AND NOT regexp_matches(function_name, '^(age|ago|version|user|.*_user|current_.*|pg_.*|inet_.*)$')
"""
_LOCKED = (
    "SET TimeZone='UTC'",
    "SET enable_external_access=false",
    "SET python_enable_replacements=false",
    "SET lock_configuration=true",
)
_ROWS = "rows"


@dataclass(frozen=True, eq=False)
class Where:
    """A filter of DuckDB over the columns of a row. Threads may share it; each has its own connection."""

    expression: str
    columns: tuple[str, ...]  # columns that the filter reads
    key: str
    _local: local = field(default_factory=local)

    @classmethod
    def of(cls, expression: str, schema: Any, key: str) -> Where:
        """Check an expression against the columns of a table.

        ValueError unless it is a single boolean expression of deterministic functions.
        """
        columns = {_column(names, schema, key): None for names in _names_in(expression, key)}
        where = cls(expression, tuple(columns), key)
        types = ", ".join(f"{name} is {schema.field(name).type}" for name in columns) or "none"
        try:
            kind = where._query(schema.empty_table().select(list(columns) or schema.names[:1])).types[0]
        except duckdb.Error:
            raise ValueError(
                f"{key}: {expression!r} does not fit the types of its columns ({types}); columns of CSV "
                "files are text, cast them, as price::DOUBLE"
            ) from None
        if str(kind) != "BOOLEAN":
            raise ValueError(f"{key}: {expression!r} is {kind}: must be true or false, as kind = 'buy'")
        return where

    def apply(self, rows: TableRows) -> TableRows:
        """Return the rows for which the expression is true; null is not true."""
        if not len(rows):
            return rows
        chosen = rows.batch.select(list(self.columns)) if self.columns else rows.batch
        try:
            table = self._query(chosen).to_arrow_table()
        except duckdb.Error:
            row = first_failing(
                len(rows), lambda first, count: self._query(chosen.slice(first, count)).to_arrow_table()
            )
            values = ", ".join(f"{name} = {shown(chosen.column(name)[row])}" for name in self.columns)
            raise ValueError(
                f"{rows.row(row)}: {self.key}: {self.expression!r} fails for {values or 'it'}; use try_cast, "
                "or correct the row"
            ) from None
        return rows.keep(numpy_of(pc.fill_null(table.column(0).combine_chunks(), False)))

    def _query(self, rows: Any) -> Any:
        if not hasattr(self._local, "connection"):
            self._local.connection = locked_connection()
        self._local.connection.register(_ROWS, rows)
        return self._local.connection.table(_ROWS).select(duckdb.SQLExpression(self.expression))


def locked_connection() -> Any:
    """Return an in-memory connection that cannot read files, load extensions or change its settings."""
    connection = connected(threads=1, memory_limit="1GB")
    for setting in _LOCKED:
        connection.execute(setting)
    return connection


def _names_in(expression: str, key: str) -> list[list[str]]:
    """Return the columns of an expression; ValueError unless its value depends only on the row."""
    try:
        duckdb.SQLExpression(expression)
    except duckdb.Error as error:
        found = re.search(r'at or near "(.*)"', str(error))
        near = f", near {found[1]!r}" if found and found[1] in expression else ""
        raise ValueError(
            f"{key}: {expression!r} is not one SQL expression{near}; write one, as kind = 'buy'"
        ) from None
    with connected(threads=1) as connection:
        query = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [f"SELECT ({expression}\n)"])
        nodes = list(_nodes(json.loads(query.fetchone()[0])))
        for node in nodes:
            name = str(node.get("function_name", "")).lower()
            if what := _REFUSED.get(node["class"]):
                raise ValueError(
                    f"{key}: {expression!r} has {what}: write one expression over the columns of a row"
                )
            if node["class"] == "FUNCTION" and not node.get("is_operator") and name not in _fixed():
                raise ValueError(
                    f"{key}: {expression!r} calls {name}(), which is not a fixed function of a row; remove it"
                )
    return [node["column_names"] for node in nodes if node["class"] == "COLUMN_REF"]


def _nodes(tree: object) -> Iterator[dict[str, Any]]:
    """Yield the nodes of an expression."""
    if isinstance(tree, dict) and "class" in tree:
        yield tree
    for value in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(value)


@cache
def _fixed() -> frozenset[str]:
    """Return the deterministic functions: same value for the same arguments on any day and machine."""
    with connected(threads=1) as connection:
        return frozenset(name for (name,) in connection.execute(_FIXED).fetchall())


def _column(names: list[str], schema: Any, key: str) -> str:
    there = list(schema.names)
    name = names[-1] if len(names) > 1 and names[0] == _ROWS else names[0]
    found: list[str] = [one for one in there if one.lower() == name.lower()]  # SQL ignores case
    if not found:
        raise ValueError(f"{key}: no column {name!r}; {nearest(name, there)}; text needs quotes, as 'buy'")
    if len(found) > 1:
        raise ValueError(f"{key}: {quoted(name)} is one of {', '.join(found)}; rename the columns")
    return found[0]


ROW_BYTES = 16  # reading a row takes about as long as sorting and writing these bytes


class ReadMeter:
    """Counts rows that threads read; progress is reported in the thread that consumes them."""

    def __init__(self, notice: ProgressCallback) -> None:
        self.meter = Meter(0, notice)
        self._what = ""
        self._rows = 0
        self._lock = Lock()
        self._is_over = False

    def expect(self, rows: int, bytes_to_write: int) -> None:
        """Set the total from the rows of all passes over tables and an estimate of the bytes to write."""
        self.meter.total = rows * ROW_BYTES + bytes_to_write

    def begin(self, what: str) -> None:
        """Report `what` as the current table."""
        self._what = what
        self.meter.at(what)

    def read(self, rows: int) -> None:
        """Count rows, on any thread."""
        with self._lock:
            self._rows += rows

    def report(self) -> None:
        """Report the rows that were read since the last report."""
        with self._lock:
            rows, self._rows = self._rows, 0
        if rows and not self._is_over:
            more = min(rows * ROW_BYTES, max(0, self.meter.total - self.meter.done))  # rows may be estimated
            self.meter.at(self._what, more)

    def end(self, bytes_to_write: int) -> Meter:
        """Return the meter for the bytes to write, which are known when all edges are read."""
        self._is_over = True
        self.meter.total = self.meter.done + bytes_to_write
        return self.meter


PART = "part by files"  # the column of each row's part; no file has it by accident


@dataclass(frozen=True)
class SourceFolder:
    """Folder of relative paths, environment variables, and open databases."""

    path: Path
    environment: Mapping[str, str] = field(repr=False)
    databases: Databases = field(default_factory=Databases, repr=False)


@dataclass(frozen=True, eq=False)
class FileColumns:
    """Text columns with one value per file, added to a table: Hive partitions, and splits by files."""

    of_files: Mapping[str, Mapping[str, str | None]]  # by column and file
    needs: tuple[str, ...] = ()

    @classmethod
    def hive(cls, files: Sequence[InputFile]) -> FileColumns:
        """Return the columns of folders such as day=2020-01-01, if all files have them."""
        folders = [part for file in files for part in Path(file.name).parent.parts]
        names = dict.fromkeys(part.partition("=")[0] for part in folders if "=" in part)
        if not names:
            return cls({})
        from pyarrow.dataset import HivePartitioning, get_partition_keys

        partitioning = HivePartitioning(pa.schema([(name, pa.string()) for name in names]))
        found = {file.name: get_partition_keys(partitioning.parse(file.name)) for file in files}
        keys = [name for name in names if all(name in of_file for of_file in found.values())]
        return cls({key: {name: of_file[key] for name, of_file in found.items()} for key in keys})

    @property
    def schema(self) -> Any:
        """The columns, as text."""
        return pa.schema([(name, pa.string()) for name in self.of_files])

    def load(self, columns: Sequence[str]) -> None:
        """Do nothing: file names are known."""

    def values(self, rows: TableRows, columns: Sequence[str]) -> list[Any]:
        """Return the value of the rows' file."""
        of_file = [self.of_files[name].get(rows.place.name) for name in columns]
        return [pa.repeat(pa.scalar(value, pa.string()), len(rows)) for value in of_file]


@dataclass(eq=False)
class Joined:
    """Columns of another table of the same nodes, joined by id. The used columns are in memory."""

    source: OpenSource
    id: str  # its column of ids
    on: str  # the first table's column of ids
    names: Mapping[str, str]  # its columns, by their names among those of the first table
    _ids: IdTable[Any] = field(default_factory=lambda: id_table("string"))
    _table: Any = None
    _found: npt.NDArray[np.bool_] | None = None  # rows with an id of a node

    @classmethod
    def of(cls, source: OpenSource, id: str, on: str, taken: Sequence[str]) -> Joined:
        """Return all columns except the id; a column with a taken name is named "also.NAME"."""
        source.check({id: f"{source.key}.id"})
        source.id_type(id, f"{source.key}.id")
        names = [name for name in source.schema.names if name != id]
        return cls(source, id, on, {f"also.{name}" if name in taken else name: name for name in names})

    @property
    def schema(self) -> Any:
        """The columns with their types."""
        return pa.schema([(name, self.source.schema.field(own).type) for name, own in self.names.items()])

    @property
    def needs(self) -> tuple[str, ...]:
        """The ids of the first table."""
        return (self.on,)

    @property
    def left_out(self) -> list[str]:
        """Text about rows without a node, if any."""
        count = 0 if self._found is None else int((~self._found).sum())
        return [f"{self.source.key}: {count:,} rows have an id that is not a node"] if count else []

    def load(self, columns: Sequence[str]) -> None:
        """Read the columns, once."""
        if self._table is not None and set(columns) <= set(self._table.column_names):
            return
        self._ids, batches = id_table("string"), []
        own = [self.names[name] for name in columns]
        for piece in self.source.pieces([self.id, *own]):
            rows = piece()
            key = f"{self.source.key}.id"
            twice = self._ids.append(keys_of(rows.column(self.id), "string", key, rows.row))
            if twice >= 0:
                value = rows.column(self.id)[twice].as_py()
                place = f"{rows.row(twice)}: {self.source.key}"
                raise ValueError(f"{place}: the id {value!r} is also in an earlier row; remove one")
            batches.append(
                pa.RecordBatch.from_arrays([rows.column(name) for name in own], names=list(columns))
            )
        schema = pa.schema([self.schema.field(name) for name in columns])
        self._table = pa.Table.from_batches(batches, schema).combine_chunks()
        self._found = np.zeros(len(self._table), bool)

    def values(self, rows: TableRows, columns: Sequence[str]) -> list[Any]:
        """Return the values of each row's id; null for unknown and null ids, which `where` may exclude."""
        assert self._found is not None
        known = numpy_of(rows.column(self.on).is_valid())
        named, at = rows.keep(known), np.full(len(rows), -1, np.int64)
        keys = keys_of(named.column(self.on), "string", f"{self.source.key}: {self.on}", named.row)
        at[known] = self._ids.find(keys)
        self._found[at[at >= 0]] = True
        taken = self._table.select(list(columns)).take(pa.array(at, mask=at < 0))
        return [one.chunk(0) if one.num_chunks == 1 else one.combine_chunks() for one in taken.columns]


Added = FileColumns | Joined  # columns added to the rows of a table


@dataclass(frozen=True, eq=False)
class OpenSource:
    """A table with its filter and added columns."""

    table: Table
    spec: Source
    key: str  # of the table in the spec: nodes.user
    wheres: tuple[Where, ...] = ()
    meter: ReadMeter | None = None
    is_untyped: bool = False  # True for CSV: all columns are text
    added: tuple[Added, ...] = ()
    numbers: frozenset[str] = frozenset()  # columns with decimal commas
    ids: frozenset[str] = frozenset()  # columns of untyped text: blanks around ids are stripped

    @classmethod
    def open(
        cls, spec: Source, key: str, folder: SourceFolder, also: Sequence[Also] = (), id: str = ""
    ) -> OpenSource:
        """Open the files, database or table of a spec and the tables joined by id; reads only schemas."""
        table: Table
        added: list[Added] = []
        if spec.files is not None:
            files = find_files(spec.files, folder.path, f"{key}.files")
            dialect = Dialect(spec.header, spec.delimiter, spec.encoding)
            table = open_files(files, dialect, f"{key}.files", spec.format)
            added.append(FileColumns.hive(files))
        elif spec.database is not None:
            assert spec.table is not None
            assert spec.order_by is not None
            place = f"{key}.database"
            database = database_of(spec.database, folder.path, folder.environment, place)
            table = folder.databases.open_table(database, spec.table, spec.order_by, place)
        else:
            table = MemoryTable.of(spec.rows, key)
        numbers = frozenset(spec.numbers if spec.decimal == "," else ())
        opened = cls(table, spec, key, added=tuple(added), numbers=numbers).with_ids(spec.id_columns)
        for number, one in enumerate(also):
            place = f"{key}.also" if len(also) == 1 else f"{key}.also[{number}]"
            other = cls.open(one, place, folder)
            joined = Joined.of(other, one.id, id, opened.schema.names)
            of_other = frozenset(joined.names.get(name, "") for name in spec.numbers)
            other = replace(other, numbers=of_other if one.decimal == "," else frozenset())
            opened = opened.with_columns(replace(joined, source=other))
        if isinstance(spec.missing, Mapping):
            opened.check({name: f"{key}.missing" for name in spec.missing})
        return opened._with_unit().filtered(spec.where, f"{key}.where")

    def _with_unit(self) -> OpenSource:
        """Return the source with the unit of numeric times, found in the first rows if the spec has none."""
        name, spec = self.spec.time, self.spec
        if name is None or spec.unit is not None or spec.time_format is not None:
            return self
        if name not in self.schema.names or pa.types.is_temporal(self.schema.field(name).type):
            return self
        if isinstance(self.table, CsvTable) and not re.match(
            r"$|\d{9,19}(\.\d+)?$", self.table.first_value(name)
        ):
            return self  # without a batch of rows, which would take time
        first = next(self.pieces((name,)), None)
        unit = None if first is None else found_unit(first().column(name))
        if unit is None:
            return self
        warnings.warn(
            f'{self.key}.time: whole numbers are taken as {unit} since 1970; write unit = "{unit}"',
            stacklevel=1,
        )
        return replace(self, spec=spec.model_copy(update={"unit": unit}))

    @cached_property
    def schema(self) -> Any:
        """Names and types of all columns; columns of the table take precedence over added ones."""
        fields = {one.name: one for one in self.table.schema}
        for added in self.added:
            fields |= {one.name: one for one in added.schema if one.name not in fields}
        return pa.schema(list(fields.values()))

    def id_type(self, column: str, key: str) -> Any:
        """Return the type of a column of ids. ValueError for types that are neither text nor integers."""
        field = self.schema.field(column)
        types = self.table.mixed.get(column) if isinstance(self.table, FileTable) else None
        check_ids(field, key, types)
        return field.type

    @cached_property
    def null_texts(self) -> Mapping[str, tuple[str, ...]]:
        """Texts that are null, by column."""
        return self.spec.null_texts

    @property
    def time_format(self) -> TimeFormat:
        """Settings of the time column."""
        return TimeFormat(self.spec.unit, self.spec.timezone, self.spec.time_format)

    @property
    def left_out(self) -> list[str]:
        """Texts about rows of joined tables without a node."""
        return [note for one in self.added if isinstance(one, Joined) for note in one.left_out]

    def with_columns(self, added: Added) -> OpenSource:
        """Return the table with more columns."""
        return replace(self, added=(*self.added, added))

    def with_ids(self, columns: Collection[str]) -> OpenSource:
        """Return the table with these columns of ids."""
        is_untyped = isinstance(self.table, CsvTable)
        return replace(self, is_untyped=is_untyped, ids=frozenset(columns if is_untyped else ()))

    def with_parts(self, split: Split, folder: SourceFolder, key: str, id: str = "") -> OpenSource:
        """Return the table with the column PART: parts are its files, or lists of ids in files."""
        found = {part: find_files([path], folder.path, f"{key}.{part}") for part, path in split.files.items()}
        part_of = {file.path.resolve(): part for part, files in found.items() for file in files}
        own = find_files(self.spec.files or (), folder.path, f"{self.key}.files")
        of_file = {file.name: part_of.pop(file.path.resolve(), None) for file in own}
        if any(of_file.values()) and not part_of:
            return self.with_columns(FileColumns({PART: of_file}))
        if not id or any(of_file.values()):
            given = ", ".join(file.name for files in found.values() for file in files)
            raise ValueError(f"{key}: {given}: must be among the files of {self.key}; add them to files")
        files = [file for of_part in found.values() for file in of_part]
        parts = FileColumns({PART: {file.name: part for part, of in found.items() for file in of}})
        spec = Source(files=tuple(file.name for file in files), header="no", format="csv")
        for file in files:
            table = open_files([file], Dialect("no"), key, "csv")
            if (fields := len(table.schema)) != 1:
                reason = f"line 1 has {fields} fields" if fields else "is empty"
                raise ValueError(f"{key}: {file.name}: {reason}; give one id per line")
        table = open_files(files, Dialect("no"), key, "csv")
        lists = OpenSource(table, spec, key, added=(parts,)).with_ids(["0"]).filtered('"0" IS NOT NULL', key)
        return self.with_columns(Joined(lists, "0", id, {PART: PART}))

    def filtered(self, expression: str | None, key: str) -> OpenSource:
        """Return the table with one more filter."""
        if expression is None:
            return self
        return replace(self, wheres=(*self.wheres, Where.of(expression, self.schema, key)))

    def check(self, columns: Mapping[str, str]) -> None:
        """Raise ValueError unless the columns exist; each is mapped to its key in the spec."""
        of_others = {name for one in self.added for name in one.schema.names}
        check_columns(self.table, {name: key for name, key in columns.items() if name not in of_others})

    def stored(self, columns: Sequence[str]) -> list[str]:
        """Return the table's columns that are read for these."""
        wanted = [*columns, *(name for one in self.wheres for name in one.columns)]
        there = set(self.table.schema.names)
        needed = [name for one, _ in self._added(wanted) for name in one.needs]
        found = list(dict.fromkeys(name for name in (*wanted, *needed) if name in there))
        return found or self.table.schema.names[:1]

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """Yield readers of the kept rows, in order; also reads the columns of filters."""
        added = self._added([*columns, *(name for one in self.wheres for name in one.columns)])
        for one, names in added:
            one.load(names)
        for piece in read_pieces(self.table, self.stored(columns)):
            yield partial(self._kept, piece, added)
            if self.meter is not None:
                self.meter.report()

    def _added(self, columns: Sequence[str]) -> list[tuple[Added, list[str]]]:
        taken, found = set(self.table.schema.names), list[tuple[Added, list[str]]]()
        for one in self.added:
            names = [
                name for name in dict.fromkeys(columns) if name in one.schema.names and name not in taken
            ]
            taken.update(names)
            found += [(one, names)] if names else []
        return found

    def _kept(self, piece: Piece, added: Sequence[tuple[Added, list[str]]]) -> TableRows:
        rows = piece()
        if self.meter is not None:
            self.meter.read(len(rows))
        if added or self.null_texts or self.numbers or self.ids:
            names, arrays = rows.batch.schema.names, rows.batch.columns
            columns = {name: self._read(name, array) for name, array in zip(names, arrays, strict=True)}
            rows = replace(rows, batch=pa.RecordBatch.from_pydict(columns))  # joined by the ids as read
            for one, names in added:
                arrays = one.values(rows, names)
                columns |= {name: self._read(name, array) for name, array in zip(names, arrays, strict=True)}
            rows = replace(rows, batch=pa.RecordBatch.from_pydict(columns))
        for where in self.wheres:
            rows = where.apply(rows)
        return rows

    def _read(self, name: str, array: Any) -> Any:
        """Return a text column with nulls for missing values, and with decimal points."""
        if not is_text(array.type):
            return array
        if name in self.ids:
            array = without_blanks(array)
        words = (*self.null_texts.get("", ()), *self.null_texts.get(name, ()))
        if words:
            is_null = pc.is_in(array, pa.array(words, array.type))
            array = pc.if_else(is_null, pa.scalar(None, array.type), array)
        return pc.replace_substring(array, ",", ".") if name in self.numbers else array
