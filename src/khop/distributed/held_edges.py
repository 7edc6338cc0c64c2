"""The edges of the parts of a graph that a process holds, for splits of links."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.partition.local_partitions import LocalPartitions
from khop.sampling.link_split import Counted, EdgeRange
from khop.schema import EdgeType, NodeType, Schema


def own_counts(counts: Tensor, of: Counted) -> Tensor:
    """Return the counts of this process alone."""
    return counts


@dataclass(frozen=True, eq=False)
class HeldEdges:
    """The edges of some parts, and sums of counts over all parts (a DistributedEdges and a ColumnEdges).

    `summing` takes the counts of this process, and returns the sum of the counts of all processes. By default
    there is no other process.
    """

    held: LocalPartitions
    summing: Callable[[Tensor, Counted], Tensor] = own_counts

    @property
    def schema(self) -> Schema:
        """The types of the graph."""
        return self.held.schema

    @property
    def original_ids(self) -> Mapping[NodeType, Tensor]:
        """Ids before partitioning, int64 (nodes of all parts), by node type."""
        return self.held.nodes.originals

    def edge_ranges(self, edge_type: EdgeType) -> Sequence[EdgeRange]:
        """Return the edges of each part."""
        return [EdgeRange(csc, first) for csc, first in self.held.rows(edge_type)]

    def total(self, counts: Tensor, of: Counted) -> Tensor:
        """Return the sum of counts over all parts."""
        return self.summing(counts, of)

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type in all parts."""
        return self.held.nodes.counts[node_type]

    def edge_column(self, edge_type: EdgeType, name: str) -> Sequence[Tensor] | None:
        """Return a column of the edges of each part; None if the type lacks it."""
        if name not in self.schema.columns.get(edge_type, {}):
            return None
        every = [torch.arange(csc.num_edges) for csc, _ in self.held.rows(edge_type)]
        return self.held.column(edge_type, name, every)

    def node_column(self, node_type: NodeType, name: str) -> Tensor | None:
        """Return a scalar column of the nodes of all parts; None if the type lacks it."""
        if name not in self.schema.columns.get(node_type, {}):
            return None
        return self.held.folder.columns()[node_type][name]
