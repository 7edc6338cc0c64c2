"""Opened tables of a spec: rows that `where` keeps, with the columns that are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from khop.importing.csv_file import CsvTable, Dialect
from khop.importing.database import Databases, database_of
from khop.importing.files import find_files, open_files
from khop.importing.memory_table import MemoryTable
from khop.importing.read_meter import ReadMeter
from khop.importing.rows import Piece, Rows, Table, check_columns, read_pieces
from khop.importing.spec import Source
from khop.importing.times import TimeFormat
from khop.importing.where import Where


@dataclass(frozen=True)
class SourceFolder:
    """Origin of relative paths and of variables, with the databases that are open."""

    path: Path
    environment: Mapping[str, str] = field(repr=False)
    databases: Databases = field(default_factory=Databases, repr=False)


@dataclass(frozen=True, eq=False)
class OpenSource:
    """A table with its filter."""

    table: Table
    spec: Source
    key: str  # of the table in the spec: nodes.user
    wheres: tuple[Where, ...] = ()
    meter: ReadMeter | None = None
    is_untyped: bool = False  # True for CSV: all columns are text

    @classmethod
    def open(cls, spec: Source, key: str, folder: SourceFolder) -> OpenSource:
        """Open the files, database or table of a spec; nothing but schemas is read."""
        table: Table
        if spec.files is not None:
            files = find_files(spec.files, folder.path, f"{key}.files")
            table = open_files(files, Dialect(spec.header, spec.delimiter, spec.encoding), f"{key}.files")
        elif spec.database is not None:
            assert spec.table is not None
            assert spec.order_by is not None
            place = f"{key}.database"
            database = database_of(spec.database, folder.path, folder.environment, place)
            table = folder.databases.open_table(database, spec.table, spec.order_by, place)
        else:
            table = MemoryTable.of(spec.rows, key)
        opened = cls(table, spec, key, is_untyped=isinstance(table, CsvTable))
        return opened.filtered(spec.where, f"{key}.where")

    @property
    def time_format(self) -> TimeFormat:
        """Settings of the time column."""
        return TimeFormat(self.spec.unit, self.spec.timezone, self.spec.format)

    def filtered(self, expression: str | None, key: str) -> OpenSource:
        """Return the table with one more filter."""
        if expression is None:
            return self
        return replace(self, wheres=(*self.wheres, Where.of(expression, self.table.schema, key)))

    def check(self, columns: Mapping[str, str]) -> None:
        """Raise ValueError unless the columns exist; each is mapped to its key in the spec."""
        check_columns(self.table, dict(columns))

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """Yield readers of the kept rows, in order; the columns of filters are read too."""
        wanted = list(dict.fromkeys([*columns, *(name for one in self.wheres for name in one.columns)]))
        for piece in read_pieces(self.table, wanted):
            yield partial(self._kept, piece)
            if self.meter is not None:
                self.meter.report()

    def _kept(self, piece: Piece) -> Rows:
        rows = piece()
        if self.meter is not None:
            self.meter.read(len(rows))
        for where in self.wheres:
            rows = where.apply(rows)
        return rows
