"""Rows of CSV files kept between the passes over them: reading text takes most of the time of an import."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from khop.graph.atomic import naming
from khop.importing.disk_estimate import read_again
from khop.importing.import_state import ImportState, edge_reader
from khop.importing.packages import pa
from khop.importing.rows import Piece, Place, Rows, Table


@dataclass(eq=False)
class KeptTable:
    """A table whose first complete pass also writes its rows to an Arrow file, which the others read."""

    table: Table
    columns: tuple[str, ...]  # of all passes
    path: Path  # of the file, which is there after the first pass
    _places: tuple[Place, ...] | None = None  # of the batches of the file, once it is complete

    @property
    def name(self) -> str:
        """Its files, for errors."""
        return self.table.name

    @property
    def schema(self) -> Any:
        """Names and types of its columns, as a pyarrow schema."""
        return self.table.schema

    @property
    def num_bytes(self) -> int:
        """Size of its files."""
        return self.table.num_bytes

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        """Yield rows that have been read already."""
        if self._places is None:
            return self._first_pass(columns)
        return self._later_pass(columns, self._places)

    def _first_pass(self, columns: Sequence[str]) -> Iterator[Piece]:
        places = []
        schema = pa.schema([self.schema.field(name) for name in self.columns])
        with pa.ipc.new_file(str(self.path), schema) as writer:
            for piece in self.table.pieces(self.columns):
                rows = piece()
                with naming(self.path):
                    writer.write_batch(rows.batch)
                places.append(rows.place)
                yield partial(Rows, rows.batch.select(columns), rows.place)
        self._places = tuple(places)

    def _later_pass(self, columns: Sequence[str], places: Iterable[Place]) -> Iterator[Piece]:
        wanted = [self.columns.index(name) for name in columns]
        options = pa.ipc.IpcReadOptions(included_fields=wanted)
        # Not a mapping: its pages would count as memory of the process.
        with pa.OSFile(str(self.path)) as file, pa.ipc.open_file(file, options=options) as reader:
            for number, place in enumerate(places):
                yield partial(Rows, reader.get_batch(number).select(columns), place)


@contextmanager
def parsed_once(work: ImportState, folder: Path) -> Iterator[None]:
    """Keep the rows of CSV edge tables that are read more than once, in files in `folder` until the end."""
    before, sources, paths = work.edge_sources, dict(work.edge_sources), []
    for number, edge_types in enumerate(read_again(work)):
        columns = {edge_type: list(edge_reader(work, edge_type).columns()) for edge_type in edge_types}
        names = [name for edge_type in edge_types for name in before[edge_type].stored(columns[edge_type])]
        paths.append(folder / f"rows-{number}.arrow")
        table = KeptTable(before[edge_types[0]].table, tuple(dict.fromkeys(names)), paths[-1])
        sources.update({edge_type: replace(before[edge_type], table=table) for edge_type in edge_types})
    work.edge_sources = sources
    try:
        yield
    finally:
        work.edge_sources = before
        for path in paths:
            path.unlink(missing_ok=True)
