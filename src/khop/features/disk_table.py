"""Columns that a gather reads from their files, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from khop.features.cache_plan import CachePlan
from khop.features.row_cache import RowCache
from khop.features.store import FeatureStoreBase, Gathered, Rows, Tensors, Wanted
from khop.features.table import FeatureTable
from khop.kernels.checks import check_ids
from khop.kernels.file_rows import RowFile, read_file_rows
from khop.kernels.gather import gather_columns
from khop.kernels.owners import remote_rows
from khop.schema import EdgeType, NodeType, Schema, Specs, Type


@dataclass(frozen=True, eq=False)
class DiskTable(FeatureStoreBase):
    """A feature store over the columns of a folder, for columns that are larger than memory.

    A gather sorts the ids, reads each row once, and announces the reads to the disk ahead. The result has the
    same bits as a gather from the mapped columns. Threads may share a table.
    """

    mapped: FeatureTable  # all columns; gathers those without a file, and tells how rows are converted
    files: Mapping[NodeType | EdgeType, Mapping[str, RowFile]]  # of the columns to read
    cache: RowCache | None = None  # rows in memory that are not read again
    threads: int = 1

    @property
    def specs(self) -> Specs:
        """Dtype and shape of every column, by type; a quantized column has its scales."""
        return self.mapped.specs

    def gather(self, wanted: Wanted) -> Gathered:
        """Gather the requested rows, in the order of the ids; ValueError names a missing column or row."""
        found = self.mapped.gather({t: self._mapped_rows(t, rows) for t, rows in wanted.items()})
        return {
            t: {
                name: found[t][name] if name in found[t] else self._read(t, name, rows)
                for name in rows.columns
            }
            for t, rows in wanted.items()
        }

    def resident_rows(self, type_: Type) -> range:
        """Return no rows of a type with columns on disk, and all rows of the others."""
        return range(0) if self._of(type_) else self.local_rows(type_)

    def with_threads(self, threads: int) -> DiskTable:
        """Return a table of the same columns that uses up to `threads` threads for each gather."""
        return replace(self, mapped=self.mapped.with_threads(threads), threads=threads)

    def cached(self, plan: CachePlan) -> DiskTable:
        """Return a table that keeps the rows of a plan in memory, of the columns that are read from files."""
        columns = {t: tuple(n for n in names if n in self._of(t)) for t, names in plan.columns.items()}
        of_files = {t: ids for t, ids in plan.ids.items() if columns[t]}
        schema = Schema(tuple(t for t in self.specs if isinstance(t, str)), (), columns=self.specs)
        plan = replace(plan, ids=of_files, columns=columns)
        return replace(self, cache=RowCache.filled(plan, replace(self, cache=None), schema))

    def whole_columns(self) -> Tensors:
        """Return every column of every type, mapped."""
        return self.mapped.whole_columns()

    def with_columns(self, added: Tensors) -> DiskTable:
        """Return a table with columns of additional types, or with other columns of a type."""
        files = {t: of_type for t, of_type in self.files.items() if t not in added}
        return replace(self, mapped=self.mapped.with_columns(added), files=files)

    def _of(self, type_: NodeType | EdgeType) -> Mapping[str, RowFile]:
        return self.files.get(type_, {})

    def _mapped_rows(self, type_: NodeType | EdgeType, rows: Rows) -> Rows:
        return replace(rows, columns=tuple(name for name in rows.columns if name not in self._of(type_)))

    def _read(self, type_: NodeType | EdgeType, name: str, rows: Rows) -> Tensor:
        """Read the rows that are not cached, and put all in the order of the ids."""
        column, file = self.mapped.column(type_, name, rows), self.files[type_][name]
        ids = rows.ids[: column.count]
        check_ids(ids, file.num_rows, column.what)
        pieces: list[Tensor] = []
        slots = None
        if isinstance(type_, str) and self.cache is not None and self.cache.covers(type_, (name,)):
            slots = self.cache.find(type_, ids)
            pieces.append(self.cache.rows.columns[type_][name])
        places, missing = remote_rows(ids, 0, 0, slots=slots, kept=sum(piece.shape[0] for piece in pieces))
        pieces.append(read_file_rows(file, missing, threads=self.threads))
        return gather_columns([replace(column, table=pieces, count=None)], places, threads=self.threads)[0]
