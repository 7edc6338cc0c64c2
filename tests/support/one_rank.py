"""Stores of a partitioned graph on the only rank of a run, which exchanges with itself."""

from __future__ import annotations

from pathlib import Path

from khop.distributed.exchange.lanes import Lanes
from khop.distributed.owners import PartitionOwners, RankOwners
from khop.distributed.partitioned_graph import PartitionedGraph
from khop.distributed.processes.group import ALONE
from khop.graph.partitions.local_partitions import LocalPartitions
from khop.graph.partitions.parts_folder import open_parts


def one_rank_graph(parts: Path) -> PartitionedGraph:
    """The edges of all parts, held by the one rank."""
    folder = open_parts(parts)
    owners = PartitionOwners(folder.book.num_parts, 0, 1)
    return PartitionedGraph(LocalPartitions.of(folder), RankOwners(owners, Lanes(ALONE, 1)))
