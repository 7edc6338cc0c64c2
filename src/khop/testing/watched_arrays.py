"""Arrays of a graph store and frontiers that note what a rule reads of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from khop.draw import Frontier
from khop.graph.rule_arrays import RuleArrays
from khop.kernels.csc import Csc
from khop.kernels.edge_times import EdgeTimes
from khop.kernels.rising import Rising
from khop.rules.rule import Need, NeedKind
from khop.schema import EdgeType, NodeType


@dataclass(frozen=True)
class WatchedFrontier(Frontier):
    """A frontier, and the names of its fields that were read."""

    read: set[str] = field(default_factory=set)

    def __getattribute__(self, name: str) -> object:
        """Note the name if it is a field beside the nodes."""
        if name in ("until", "tree"):
            super().__getattribute__("read").add(name)
        return super().__getattribute__(name)


@dataclass(frozen=True)
class WatchedArrays:
    """The arrays of a store, and the names of those that were read."""

    inner: RuleArrays
    read: set[tuple[NeedKind, EdgeType, str]] = field(default_factory=set)

    @property
    def edges(self) -> Mapping[EdgeType, Csc]:
        """Edges by type."""
        return self.inner.edges

    @property
    def original_ids(self) -> Mapping[NodeType, Tensor]:
        """Original ids of node types that were renumbered."""
        return self.inner.original_ids

    def column(self, edge_type: EdgeType, name: str) -> Tensor | None:
        """Return a column of the edges."""
        self.read.add((NeedKind.COLUMN, edge_type, name))
        return self.inner.column(edge_type, name)

    def weight_sums(self, edge_type: EdgeType, column: str) -> Rising | None:
        """Return running sums of weights."""
        self.read.add((NeedKind.WEIGHT_SUMS, edge_type, column))
        return self.inner.weight_sums(edge_type, column)

    def times(self, edge_type: EdgeType, column: str) -> Rising | None:
        """Return times that ascend within rows."""
        self.read.add((NeedKind.TIMES, edge_type, column))
        return self.inner.times(edge_type, column)

    def own_times(self, edge_type: EdgeType, column: str) -> EdgeTimes | None:
        """Return times as the graph stores them."""
        self.read.add((NeedKind.TIMES, edge_type, column))
        return self.inner.own_times(edge_type, column)

    def source_ids(self, edge_type: EdgeType) -> Tensor:
        """Return the original id of each edge's source."""
        self.read.add((NeedKind.SOURCE_IDS, edge_type, ""))
        return self.inner.source_ids(edge_type)

    def vector(self, need: Need) -> Tensor | None:
        """Return rows in which edges share a source, or the vector of a column."""
        self.read.add((need.kind, need.edge_type, need.column))
        return self.inner.vector(need)
