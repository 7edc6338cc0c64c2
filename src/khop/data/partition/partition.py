"""Partitioning of a graph folder into parts, and of its nodes into clusters for Cluster-GCN.

Each part is a graph folder with its nodes. Some arrays of all nodes, a few bytes per node, are stored once
for all machines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from khop.arguments import (
    LARGEST_SEED,
    checked_field,
    column_name,
    instance_of,
    list_of,
    real_number,
    whole_number,
)
from khop.components import ANY_NAMED
from khop.data.partition.methods import PARTITIONERS
from khop.data.partition.partitioners import (
    NODES,
    AssignRequest,
    PartitionContext,
    Partitioner,
    TypeNumbering,
    balance_of,
    quality_of,
)
from khop.graph import layout
from khop.graph.added_edges import Topology, remote_share
from khop.graph.atomic import Meter, ProgressCallback, new_folder, refuse_existing
from khop.graph.build import chosen, save_graph, write_ids
from khop.graph.folder import (
    ORIGINAL_ID,
    GraphFolder,
    documents_of,
    open_folder,
    refuse_damage,
    write_documents,
)
from khop.graph.folder_writer import FolderWriter
from khop.graph.inputs import Given
from khop.graph.manifest import INPUT, EdgeEntry, Manifest, NodeEntry, PartEntry, write_manifest
from khop.graph.node_ids import kind_of, stored_ids
from khop.graph.npy import CHUNK_BYTES, ArrayEntry, write_array
from khop.graph.partitions.book import DEGREES, PartitionBook, Quality, edge_key, part_folder, write_book
from khop.graph.partitions.parts_folder import edge_digest
from khop.graph.store import CscGraph, open_csc_graph
from khop.kernels.assign import MOST_PARTS
from khop.kernels.csc import Csc, edge_spans, index_dtype
from khop.kernels.gather import gather
from khop.kernels.memory import free_memory_bytes
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
    """Writer of the folder of one part. Only the renumbering and copied chunks are in memory."""

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
    """Return True if a part has to store the time of each edge.

    This is the case if rows are sorted by the times of source nodes, which other parts may own.
    """
    return entry.row_order != INPUT and entry.row_order in source.columns()[entry.type[0]]


def _bits(tensor: Tensor) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = Given.of(tensor, "column").values
    return values


def whole_arrays(source: GraphFolder, renumbering: Renumbering) -> Iterator[tuple[str, Tensor]]:
    """Yield files and arrays by new ids: splits, scalar node columns, original ids, in-degrees.

    Splits keep their order, so that seeds have the same order as in the unpartitioned graph.
    """
    for name in source.split_names:
        for node_type, ids in source.split(name).items():
            yield layout.node_split(node_type, name), renumbering.new_ids[node_type][ids].long()
    columns = source.columns()
    for node in source.manifest.nodes:
        order, of_type = renumbering.old_ids[node.type], columns[node.type]
        if ORIGINAL_ID not in of_type:
            yield layout.node_column(node.type, ORIGINAL_ID), order
        for name, column in of_type.items():
            if column.dim() == 1:
                yield layout.node_column(node.type, name), gather(column, order)
    for edge in source.manifest.edges:
        degrees = source.csc(edge.type).degrees()[renumbering.old_ids[edge.type[2]]]
        yield layout.edge_array(edge.type, DEGREES), degrees.to(index_dtype(edge.count))


TRAIN = "train"


@dataclass(frozen=True)
class PartitionSettings:
    """Settings of a partitioning."""

    parts: int
    method: str | Partitioner = "ldg"  # a kind, or a value of a method
    balance: Sequence[str] | None = None  # None: nodes, and the split "train" if the graph has it
    slack: float = 0.05  # allowed excess of a part over its equal share, 0.05 for 5 %
    seed: int = 0  # for methods that use random numbers
    fanouts: tuple[int, ...] = ()  # if given: estimate the share of remote nodes in a batch
    batch_size: int = 1024  # training seeds over all parts, for the estimate with `fanouts`
    method_options: Mapping[str, Any] = field(default_factory=dict)  # of a method's kind

    def __post_init__(self) -> None:
        checked_field(self, "parts", whole_number)
        checked_field(self, "seed", whole_number, 0, LARGEST_SEED)
        checked_field(self, "slack", real_number)
        checked_field(self, "batch_size", whole_number, 1)
        for name in () if self.balance is None else list_of("balance", self.balance, '["nodes", "edges"]'):
            instance_of("balance", name, str, "must be names")
        if not 1 <= self.parts <= MOST_PARTS:
            raise ValueError(f"parts {self.parts}: must be 1 to {MOST_PARTS}")
        self.partitioner()
        fanouts = [whole_number("fanouts", one) for one in list_of("fanouts", self.fanouts, "[10, 5]")]
        object.__setattr__(self, "fanouts", tuple(fanouts))
        if any(fanout < -1 for fanout in self.fanouts):
            raise ValueError(f"fanouts {list(self.fanouts)}: must be 0 or more, or -1 for all neighbors")

    @property
    def method_name(self) -> str:
        """The kind of the method, or the class of a value."""
        if isinstance(self.method, str):
            return self.method
        return f"{type(self.method).__module__}:{type(self.method).__qualname__}"

    def partitioner(self) -> Partitioner:
        """Build the method. Raises ValueError for an unknown kind."""
        if not isinstance(self.method, str):
            return self.method
        context = PartitionContext(self.parts, self.seed)
        try:
            component = PARTITIONERS.load(self.method, ANY_NAMED)
            made: Partitioner = component.build(component.options(**self.method_options), context)
        except (TypeError, ValueError) as error:
            raise ValueError(f"method {self.method!r}: {error}") from error
        return made

    def balanced(self, folder: GraphFolder) -> tuple[str, ...]:
        """Return the names of the quantities to balance for a graph."""
        if self.balance is not None:
            return tuple(self.balance)
        return (NODES, TRAIN) if TRAIN in folder.split_names else (NODES,)


def write_parts(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    settings: PartitionSettings,
    *,
    threads: int = 1,
    notice: ProgressCallback | None = None,
) -> PartitionBook:
    """Partition a graph folder; see `khop.partition_graph`.

    Methods other than METIS do not keep edges or columns in memory.
    """
    folder, target = open_folder(source), Path(out)
    refuse_existing(target)
    refuse_damage(folder, notice)
    graph = open_csc_graph(folder)
    quality, assigning, assigned = assigned_parts(folder, graph, settings, threads, notice)
    if settings.fanouts:
        assigning.at("looking ahead at batches")
        everyone = {t: torch.arange(count) for t, count in graph.counts.items()}
        seeds = folder.split(TRAIN) if TRAIN in folder.split_names else everyone
        counts = settings.parts, settings.batch_size, settings.fanouts
        share = remote_share(Topology.of(graph), seeds, assigned, *counts)
        quality = replace(quality, remote_share=share)
    renumbering = Renumbering.of(assigned, settings.parts)
    with new_folder(target) as hidden:
        book = _write(hidden, folder, graph, settings, renumbering, quality, threads, notice)
        write_book(hidden, book)
    return book


def assigned_parts(
    folder: GraphFolder,
    graph: CscGraph,
    settings: PartitionSettings,
    threads: int,
    notice: ProgressCallback | None,
) -> tuple[Quality, Meter, dict[NodeType, Tensor]]:
    """Assign nodes to parts: the quality, the meter of the work, and int32 (nodes) by type."""
    numbering = TypeNumbering.of(graph.counts)
    balance = balance_of(folder, numbering, settings.parts, settings.balanced(folder), settings.slack)
    method = settings.partitioner()
    assigning = Meter(method.passes * numbering.num_nodes, notice)
    request = AssignRequest(graph, numbering, balance, settings.parts, threads, assigning)
    assigned = numbering.by_type(_checked(method.assign(request), numbering, settings))
    return quality_of(graph, numbering, balance, assigned, settings.parts), assigning, assigned


def _checked(parts_of: object, numbering: TypeNumbering, settings: PartitionSettings) -> Tensor:
    """Return the result of a method as int32; ValueError unless it is a part for each node."""
    what = f"method {settings.method_name!r}: assign returned"
    if not isinstance(parts_of, Tensor) or parts_of.dtype not in (torch.int32, torch.int64):
        kind = parts_of.dtype if isinstance(parts_of, Tensor) else type(parts_of).__name__
        raise ValueError(f"{what} {kind}: must be a tensor of int32, with the part of each node")
    if parts_of.shape != (numbering.num_nodes,):
        raise ValueError(
            f"{what} a tensor of shape {tuple(parts_of.shape)}: must have the part of each of the "
            f"{numbering.num_nodes:,} nodes"
        )
    outside = parts_of[(parts_of < 0) | (parts_of >= settings.parts)]
    if outside.numel():
        raise ValueError(f"{what} part {int(outside[0])}: must be 0 to {settings.parts - 1}")
    return parts_of.int()


def _write(
    hidden: Path,
    folder: GraphFolder,
    graph: CscGraph,
    settings: PartitionSettings,
    renumbering: Renumbering,
    quality: Quality,
    threads: int,
    notice: ProgressCallback | None,
) -> PartitionBook:
    times = sum(8 * entry.count for entry in folder.manifest.edges if needs_times(folder, entry))
    meter = Meter(times + sum(entry.data_bytes for entry in folder.manifest.arrays.values()), notice)
    for part in range(settings.parts):
        path = part_folder(hidden, part)
        path.mkdir()
        PartWriter(folder, renumbering, part, threads, meter).write(path)
    wholes = _write_wholes(hidden, folder, renumbering, meter, threads)
    documents = write_documents(hidden, documents_of(folder.path, folder.documents))
    meter.at("counting edges")
    digests = {
        edge_key(t): edge_digest(graph.csc(t), graph.original_ids(t[0]), graph.original_ids(t[2]))
        for t in graph.schema.edge_types
    }
    parts = [open_folder(part_folder(hidden, part)) for part in range(settings.parts)]
    edge_offsets = {
        edge_key(t): tuple(accumulate((part.num_edges(t) for part in parts), initial=0))
        for t in graph.schema.edge_types
    }
    for edge_type in graph.schema.edge_types:
        assert edge_offsets[edge_key(edge_type)][-1] == graph.csc(edge_type).num_edges, edge_type
    fingerprints = tuple(part.fingerprint for part in parts)
    return PartitionBook(
        settings.method_name, folder.fingerprint, renumbering.offsets, edge_offsets, fingerprints, digests,
        quality, wholes, documents,
    )  # fmt: skip


def _write_wholes(
    hidden: Path, folder: GraphFolder, renumbering: Renumbering, meter: Meter, threads: int
) -> dict[str, ArrayEntry]:
    writer = FolderWriter(hidden, meter)
    for file, array in whole_arrays(folder, renumbering):
        given = Given.of(array, file)
        writer.array(file, given.dtype, tuple(given.values.shape), iter([given.values]))
    for node_type, keys in stored_ids(folder).items():
        chunks = partial(chosen, keys, renumbering.old_ids[node_type].numpy())
        budget = free_memory_bytes() // 2
        write_ids(writer, node_type, kind_of(keys), chunks, hidden, budget, threads)
    return writer.arrays


def write_clusters(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    settings: PartitionSettings,
    column: str,
    *,
    threads: int = 1,
    notice: ProgressCallback | None = None,
) -> Path:
    """Write a graph folder with an additional column of all node types; see `khop.cluster_graph`."""
    folder, target = open_folder(source), Path(out)
    column_name(column)
    columns = dict(folder.columns())
    for type_, of_type in columns.items():
        if column in of_type and not isinstance(type_, tuple):
            raise ValueError(f"column {column!r}: {type_!r} nodes already have it; give another name")
    refuse_existing(target)
    refuse_damage(folder, notice)
    graph = open_csc_graph(folder)
    _, _, assigned = assigned_parts(folder, graph, settings, threads, notice)
    for node_type, numbers in assigned.items():
        columns[node_type] = {**columns.get(node_type, {}), column: numbers}
    splits = {name: folder.split(name) for name in folder.split_names}
    return save_graph(target, graph, columns, splits, notice, origin=folder)
