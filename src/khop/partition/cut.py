"""Write the parts of a partitioned graph. Each part is a graph folder of the nodes that it owns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from khop.graph import layout
from khop.graph.folder import ORIGINAL_ID, GraphFolder
from khop.graph.inputs import Given
from khop.graph.manifest import EdgeEntry, Manifest, NodeEntry, PartEntry, write_manifest
from khop.graph.npy import CHUNK_BYTES, ArrayEntry, write_array
from khop.graph.progress import Meter
from khop.graph.row_order import INPUT
from khop.kernels.build_csc import index_dtype
from khop.kernels.csc import Csc
from khop.kernels.edge_spans import edge_spans
from khop.kernels.gather import gather
from khop.schema import NodeType

_Chunks = Iterator[npt.NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Renumbering:
    """New node ids: the nodes of part 0 first, in their old order, then the nodes of part 1, and so on."""

    old_ids: Mapping[NodeType, Tensor]  # int64 (nodes): the old id of each new id
    new_ids: Mapping[NodeType, Tensor]  # int32 or int64 (nodes): the new id of each old id
    offsets: Mapping[NodeType, tuple[int, ...]]  # (parts + 1): the first id of each part, then the count

    @classmethod
    def of(cls, assigned: Mapping[NodeType, Tensor], parts: int) -> Renumbering:
        """Renumber the nodes, given the part of each: int32 (nodes) by node type."""
        old_ids = {t: torch.argsort(parts_of, stable=True) for t, parts_of in assigned.items()}
        new_ids = {}
        for node_type, order in old_ids.items():
            new_ids[node_type] = torch.empty(order.numel(), dtype=index_dtype(order.numel()))
            new_ids[node_type][order] = torch.arange(order.numel(), dtype=new_ids[node_type].dtype)
        counts = {t: torch.bincount(parts_of, minlength=parts) for t, parts_of in assigned.items()}
        offsets = {t: (0, *count.cumsum(0).tolist()) for t, count in counts.items()}
        return cls(old_ids, new_ids, offsets)

    def owned(self, node_type: NodeType, part: int) -> Tensor:
        """Return the old ids of the nodes of a part, ascending, which is the order of their new ids."""
        begin, end = self.offsets[node_type][part : part + 2]
        return self.old_ids[node_type][begin:end]


@dataclass(frozen=True)
class PartWriter:
    """Writer of the folder of one part. It holds only the renumbering and copied chunks in memory."""

    source: GraphFolder
    renumbering: Renumbering
    part: int
    threads: int
    meter: Meter
    arrays: dict[str, ArrayEntry] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write all files of the part; graph.json comes last."""
        nodes = tuple(self._write_nodes(folder, entry) for entry in self.source.manifest.nodes)
        edges = tuple(self._write_edges(folder, entry) for entry in self.source.manifest.edges)
        part = PartEntry(self.part, dict(self.renumbering.offsets))
        write_manifest(folder, Manifest(nodes, edges, self.arrays, part))

    def _write_nodes(self, folder: Path, entry: NodeEntry) -> NodeEntry:
        owned = self.renumbering.owned(entry.type, self.part)
        columns = self.source.columns()[entry.type]
        originals = columns.get(ORIGINAL_ID)
        for name, column in columns.items():
            if name != ORIGINAL_ID:
                file = layout.node_column(entry.type, name)
                self._write(folder, file, column, owned.numel(), self._rows(column, owned))
        ids = owned if originals is None else originals[owned]
        self._write(
            folder, layout.node_column(entry.type, ORIGINAL_ID), ids, ids.numel(), iter([ids.numpy()])
        )
        names = (*(name for name in entry.columns if name != ORIGINAL_ID), ORIGINAL_ID)
        return replace(entry, count=owned.numel(), columns=names, splits=(), ids="")

    def _write_edges(self, folder: Path, entry: EdgeEntry) -> EdgeEntry:
        owned = self.renumbering.owned(entry.type[2], self.part)
        csc = self.source.csc(entry.type)
        csc.check()
        degrees = csc.degrees()[owned]
        indptr = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
        rows = _OwnedRows(csc, owned, indptr)
        new_ids = self.renumbering.new_ids[entry.type[0]]
        count = int(indptr[-1])
        self._write(
            folder, layout.edge_array(entry.type, "indptr"), indptr, len(indptr), iter([indptr.numpy()])
        )
        file = layout.edge_array(entry.type, "indices")
        self._write(folder, file, new_ids, count, self._new_sources(rows, new_ids))
        copied = {layout.edge_column(entry.type, n): c for n, c in self.source.columns()[entry.type].items()}
        edge_id = self.source.edge_id(entry.type)
        if edge_id is not None:
            copied[layout.edge_array(entry.type, "edge_id")] = edge_id
        for file, column in copied.items():
            self._write(folder, file, column, count, self._at(rows, column))
        has_times = needs_times(self.source, entry)
        if has_times:
            file = layout.edge_array(entry.type, "times")
            self._write(folder, file, indptr, count, self._times(entry, rows))
        return replace(entry, count=count, times=has_times)

    def _write(self, folder: Path, file: str, like: Tensor, rows: int, chunks: _Chunks) -> None:
        given = Given.of(like, file)
        shape = (rows, *like.shape[1:])
        what = f"part {self.part}: {file}"
        self.arrays[file] = write_array(
            folder / file, given.dtype, shape, chunks, lambda written: self.meter.at(what, written)
        )

    def _rows(self, column: Tensor, owned: Tensor) -> _Chunks:
        row_bytes = max(1, column[:1].numel() * column.element_size())
        step = max(1, CHUNK_BYTES // row_bytes)
        for start in range(0, owned.numel(), step):
            yield _bits(gather(column, owned[start : start + step], threads=self.threads))

    def _new_sources(self, rows: _OwnedRows, new_ids: Tensor) -> _Chunks:
        for positions in rows.positions():
            sources = gather(rows.csc.indices, positions, threads=self.threads)
            yield _bits(gather(new_ids, sources.long(), threads=self.threads))

    def _times(self, entry: EdgeEntry, rows: _OwnedRows) -> _Chunks:
        columns, name = self.source.columns(), entry.row_order
        of_sources, own = columns[entry.type[0]][name], columns[entry.type].get(name)
        for positions in rows.positions():
            times = of_sources[rows.csc.indices[positions].long()].long()
            yield _bits(times if own is None else torch.maximum(times, own[positions].long()))

    def _at(self, rows: _OwnedRows, column: Tensor) -> _Chunks:
        for positions in rows.positions():
            yield _bits(gather(column, positions, threads=self.threads))


@dataclass(frozen=True, eq=False)
class _OwnedRows:
    """The CSC rows that a part owns, in the order of the part."""

    csc: Csc
    owned: Tensor  # int64 (rows), old ids
    indptr: Tensor  # int64 (rows + 1): row offsets in the part

    def positions(self) -> Iterator[Tensor]:
        """Yield the positions of the part's edges in the source graph: int64, in chunks."""
        for span in edge_spans(self.indptr):
            shifts = self.csc.indptr[self.owned[span.rows]] - self.indptr[span.rows]
            yield torch.arange(span.first, span.end) + span.per_edge(shifts)


def needs_times(source: GraphFolder, entry: EdgeEntry) -> bool:
    """Return whether a part has to store the time of each edge.

    This is the case if rows are sorted by the times of source nodes, which other parts may own.
    """
    return entry.row_order != INPUT and entry.row_order in source.columns()[entry.type[0]]


def _bits(tensor: Tensor) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = Given.of(tensor, "column").values
    return values
