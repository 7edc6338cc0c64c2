"""Streaming assignment of nodes to parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from torch import Tensor

import khop._core as _core
from khop.kernels.csc import Csc

MOST_PARTS = _core.MOST_PARTS
_MOST_NARROW_LABELS = 2**32 - 1


class Score(Enum):
    """The score of a part for a node, based on the node's neighbors in the part."""

    LDG = "ldg"  # number of neighbors, times the free share of the part
    FENNEL = "fennel"  # number of neighbors, minus the cost of the part's load


@dataclass(frozen=True, eq=False)
class InEdges:
    """The in-edges of one edge type. Nodes of all types share one numbering, type after type."""

    first_source: int
    first_destination: int
    csc: Csc


@dataclass(frozen=True)
class Limit:
    """A quantity to balance: no part exceeds `capacity` while another part has room."""

    by_type: tuple[int, ...]  # weight of a node of each type
    capacity: int
    member: int = 0  # count nodes with this bit in their byte of `members`; 0: all nodes
    by_degree: bool = False  # multiply the weight by the number of in-edges


class Assigner:
    """The state of an assignment, changed by passes over nodes or over clusters of nodes.

    A pass may be split into calls at multiples of `block` nodes. Neither the splits nor the number of
    threads change the result. Linear deterministic greedy (Stanton and Kliot 2012) and Fennel (Tsourakakis
    et al. 2014), in several passes (Nishimura and Ugander 2013), after size-limited label propagation
    (Meyerhenke et al. 2014). It takes 11 bytes per node (19 from 2^32 nodes on) besides the edges.
    """

    def __init__(
        self,
        first_node: Sequence[int],  # the first node of each type; the last entry is the number of nodes
        edges: Sequence[InEdges],
        limits: Sequence[Limit],
        members: Tensor,  # uint8 (nodes), or empty if no limit has a `member` bit
        *,
        parts: int,
        score: Score = Score.LDG,
        cluster_limit: int = 1,  # nodes
    ) -> None:
        if not 1 <= parts <= MOST_PARTS:
            raise ValueError(f"parts {parts}: must be 1 to {MOST_PARTS}")
        if not limits:
            raise ValueError("no limits: give the quantities to balance")
        self.num_nodes = first_node[-1]
        for in_edges in edges:
            in_edges.csc.check()
        kind = _core.Assigner32 if self.num_nodes <= _MOST_NARROW_LABELS else _core.Assigner64
        self._core = kind(
            list(first_node),
            [(e.first_source, e.first_destination, e.csc.indptr, e.csc.indices) for e in edges],
            members,
            [(list(limit.by_type), limit.member, limit.by_degree, limit.capacity) for limit in limits],
            parts,
            score is Score.FENNEL,
            cluster_limit,
        )

    @property
    def block(self) -> int:
        """Nodes scored together, based on earlier assignments only: a 64th of all nodes, from 64 to 4096."""
        return self._core.block()

    def cluster(self, begin: int, end: int, *, threads: int = 1) -> None:
        """Move each of nodes [begin, end) to the cluster of most of its neighbors, if it has room."""
        self._core.cluster(begin, end, threads)

    def num_cluster_blocks(self) -> int:
        """Fix the clusters and return the number of their blocks. The largest clusters come first."""
        return self._core.num_cluster_blocks()

    def place_clusters(self, begin: int, end: int, *, threads: int = 1) -> None:
        """Place the clusters of some blocks, each as a whole. A pass begins with block 0 and empty parts."""
        self._core.place_clusters(begin, end, threads)

    def stream(self, begin: int, end: int, *, threads: int = 1) -> None:
        """Place nodes [begin, end) by score. A pass begins with node 0 and empty parts."""
        self._core.stream(begin, end, threads)

    def refine(self, begin: int, end: int, *, threads: int = 1) -> None:
        """Move nodes [begin, end) to the part of most of their neighbors, if it has room."""
        self._core.refine(begin, end, threads)

    def parts(self) -> Tensor:
        """Return int32 (nodes): the part of each node, or 65535 if the node is not placed yet."""
        return self._core.parts()

    def loads(self) -> Tensor:
        """Return int64 (parts x limits): the load of each part by limit."""
        return self._core.loads()
