"""Partition a graph folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from khop.arguments import instance_of, list_of, real_number, seed_number, whole_number
from khop.components import ANY_NAMED
from khop.graph.atomic import new_folder, refuse_existing
from khop.graph.csc_graph import CscGraph, open_csc_graph
from khop.graph.damage import refuse_damage
from khop.graph.documents import documents_of, write_documents
from khop.graph.folder import GraphFolder, open_folder
from khop.graph.folder_writer import FolderWriter
from khop.graph.given_ids import kind_of
from khop.graph.inputs import Given
from khop.graph.node_ids import stored_ids
from khop.graph.npy import ArrayEntry
from khop.graph.progress import Meter, ProgressCallback
from khop.graph.visits import Topology, remote_share
from khop.graph.write_ids import chosen, write_ids
from khop.kernels.assign import MOST_PARTS
from khop.kernels.memory import free_memory_bytes
from khop.partition.balance import (
    NODES,
    AssignRequest,
    Numbering,
    PartitionContext,
    Partitioner,
    balance_of,
)
from khop.partition.book import PartitionBook, Quality, edge_key, part_folder, write_book
from khop.partition.cut import PartWriter, Renumbering, needs_times
from khop.partition.digest import edge_digest
from khop.partition.methods import PARTITIONERS
from khop.partition.quality import quality_of
from khop.partition.wholes import whole_arrays
from khop.schema import NodeType

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
        whole_number("parts", self.parts)
        seed_number(self.seed)
        real_number("slack", self.slack)
        whole_number("batch_size", self.batch_size, 1)
        for name in () if self.balance is None else list_of("balance", self.balance, '["nodes", "edges"]'):
            instance_of("balance", name, str, "must be names")
        if not 1 <= self.parts <= MOST_PARTS:
            raise ValueError(f"parts {self.parts}: must be 1 to {MOST_PARTS}")
        self.partitioner()
        if any(fanout < -1 for fanout in self.fanouts):
            raise ValueError(f"fanouts {list(self.fanouts)}: must be 0 or more, or -1 for all neighbors")

    @property
    def method_name(self) -> str:
        """The kind of the method, or the class of a value."""
        if isinstance(self.method, str):
            return self.method
        return f"{type(self.method).__module__}:{type(self.method).__qualname__}"

    def partitioner(self) -> Partitioner:
        """Make the method. Raises ValueError if there is none of this kind."""
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

    Methods other than METIS hold no edges and no columns in memory.
    """
    folder, target = open_folder(source), Path(out)
    refuse_existing(target)
    refuse_damage(folder, notice)
    graph = open_csc_graph(folder)
    quality, assigning, assigned = assigned_parts(folder, graph, settings, threads, notice)
    if settings.fanouts:
        assigning.at("looking ahead at batches")
        quality = replace(quality, remote_share=_remote_share(folder, graph, assigned, settings))
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
    numbering = Numbering.of(graph.counts)
    balance = balance_of(folder, numbering, settings.parts, settings.balanced(folder), settings.slack)
    method = settings.partitioner()
    assigning = Meter(method.passes * numbering.num_nodes, notice)
    request = AssignRequest(graph, numbering, balance, settings.parts, threads, assigning)
    assigned = numbering.by_type(method.assign(request))
    return quality_of(graph, numbering, balance, assigned, settings.parts), assigning, assigned


def _remote_share(
    folder: GraphFolder, graph: CscGraph, assigned: Mapping[NodeType, Tensor], settings: PartitionSettings
) -> float:
    everyone = {t: torch.arange(count) for t, count in graph.counts.items()}
    seeds = folder.split(TRAIN) if TRAIN in folder.split_names else everyone
    return remote_share(
        Topology.of(graph), seeds, assigned, settings.parts, settings.batch_size, settings.fanouts
    )


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
    meter = Meter(_bytes_to_write(folder), notice)
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
    return PartitionBook(
        settings.method_name,
        folder.fingerprint,
        renumbering.offsets,
        edge_offsets,
        tuple(part.fingerprint for part in parts),
        digests,
        quality,
        wholes,
        documents,
    )


def _bytes_to_write(folder: GraphFolder) -> int:
    times = sum(8 * entry.count for entry in folder.manifest.edges if needs_times(folder, entry))
    return times + sum(entry.data_bytes for entry in folder.manifest.arrays.values())


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
