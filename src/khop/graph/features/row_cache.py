"""Feature stores with cached remote rows, and with columns that stay on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from khop.graph.features.store import (
    CachePlan,
    FeatureStore,
    FeatureStoreBase,
    Gathered,
    Rows,
    Tensors,
    Wanted,
)
from khop.graph.features.table import FeatureTable
from khop.kernels.csc import check_ids
from khop.kernels.gather import RowFile, gather_columns, read_file_rows
from khop.kernels.owners import IdSlots, remote_rows
from khop.schema import EdgeType, NodeType, Schema, Specs, Type


@dataclass(frozen=True, eq=False)
class RowCache:
    """Complete columns of some ids of each type. The cache never changes, so threads may share it.

    A gather looks in the cache first and requests only missing rows from the owner. Cached rows are
    bit-identical to the owner's, so a cache does not change batches.
    """

    slots: Mapping[NodeType, IdSlots]  # on the host, where the requests to other ranks are made
    rows: FeatureTable  # by slot; on the host or on a device

    @classmethod
    def filled(
        cls, plan: CachePlan, source: FeatureStore, schema: Schema, device: torch.device | str = "cpu"
    ) -> RowCache:
        """Gather the rows of a plan from `source` into memory of `device`, in `plan.calls` calls."""
        pieces = {t: ids.tensor_split(plan.calls) for t, ids in plan.ids.items()}
        columns: dict[NodeType, dict[str, Tensor]] = {t: {} for t in plan.ids}
        ends = dict.fromkeys(plan.ids, 0)
        for call in range(plan.calls):
            gathered = source.gather({t: Rows(of[call], plan.columns[t]) for t, of in pieces.items()})
            for node_type, ids in plan.ids.items():
                begin = ends[node_type]
                ends[node_type] += pieces[node_type][call].numel()
                for name, rows in gathered[node_type].items():
                    room = columns[node_type].setdefault(name, _room(ids, rows, device))
                    room[begin : ends[node_type]] = rows
        slots = {t: IdSlots.of(ids, plan.counts[t]) for t, ids in plan.ids.items() if ids.numel()}
        return cls(slots, FeatureTable.of(schema, {t: columns[t] for t in slots}))

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows and of the lookup tables."""
        columns = [column for of_type in self.rows.columns.values() for column in of_type.values()]
        found_by = [tensor for of in self.slots.values() for tensor in (of.places, of.first_slots)]
        return sum(tensor.numel() * tensor.element_size() for tensor in (*columns, *found_by))

    def covers(self, node_type: NodeType, columns: tuple[str, ...]) -> bool:
        """Return True if the cache has all of these columns for its rows."""
        return node_type in self.slots and set(columns) <= set(self.rows.columns[node_type])

    def find(self, node_type: NodeType, ids: Tensor) -> Tensor:
        """Return int64 (n): the slot in `rows` of each id, or -1 if the id is not cached."""
        return self.slots[node_type].find(ids)


def _room(ids: Tensor, rows: Tensor, device: torch.device | str) -> Tensor:
    return torch.empty((ids.numel(), *rows.shape[1:]), dtype=rows.dtype, device=device)


@dataclass(frozen=True, eq=False)
class DiskTable(FeatureStoreBase):
    """A feature store over the columns of a folder, for columns that are larger than memory.

    A gather sorts the ids, reads each row once, and prefetches the reads. The result is bit-identical to a
    gather from the mapped columns. Threads may share a table.
    """

    mapped: FeatureTable  # all columns; gathers those without a file, and converts rows
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
        """Return all rows of a type, or none if some of its columns are on disk."""
        return range(0) if self._of(type_) else self.local_rows(type_)

    def with_threads(self, threads: int) -> DiskTable:
        """Return a table of the same columns that uses up to `threads` threads for each gather."""
        return replace(self, mapped=self.mapped.with_threads(threads), threads=threads)

    def cached(self, plan: CachePlan) -> DiskTable:
        """Return a table that caches planned rows of the columns on disk."""
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
