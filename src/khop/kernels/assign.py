"""Which part each node of a graph goes to, decided by streaming over its edges."""

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
    """What makes a part attractive for a node, beside the neighbors that are there."""

    LDG = "ldg"  # neighbors, times the share of the part that is free
    FENNEL = "fennel"  # neighbors, less what the part's load costs


@dataclass(frozen=True, eq=False)
class InEdges:
    """The in-edges of one edge type, where nodes of all types have one numbering, type after type."""

    first_source: int
    first_destination: int
    csc: Csc


@dataclass(frozen=True)
class Limit:
    """Something that no part may hold more of than `capacity`, while another part has room."""

    by_type: tuple[int, ...]  # what a node of each type weighs,
    capacity: int
    member: int = 0  # if it has this bit in its byte of `members`; 0: every node does
    by_degree: bool = False  # times its in-edges


class Assigner:
    """The state of an assignment, changed by passes over nodes or over clusters of them.

    Passes may be cut into calls at multiples of `block` nodes; neither the cuts nor the number of threads
    change the result. Linear deterministic greedy (Stanton and Kliot 2012) and Fennel (Tsourakakis et al.
    2014), in several passes (Nishimura and Ugander 2013), after size-limited label propagation (Meyerhenke
    et al. 2014). Beside the edges it takes 11 bytes a node (19 from 2^32 nodes on).
    """

    def __init__(
        self,
        first_node: Sequence[int],  # of each type; the last entry is the number of nodes
        edges: Sequence[InEdges],
        limits: Sequence[Limit],
        members: Tensor,  # uint8 (nodes), or empty where no limit asks
        *,
        parts: int,
        score: Score = Score.LDG,
        cluster_limit: int = 1,  # nodes
    ) -> None:
        if not 1 <= parts <= MOST_PARTS:
            raise ValueError(f"parts {parts}: must be 1 to {MOST_PARTS}")
        if not limits:
            raise ValueError("no limits: say what parts are to share out")
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
        """Nodes that are scored against what was decided before them: a 64th of all, from 64 to 4096."""
        return self._core.block()

    def cluster(self, begin: int, end: int, *, threads: int = 1) -> None:
        """Nodes [begin, end) join the cluster of most of their neighbors, where that has room."""
        self._core.cluster(begin, end, threads)

    def num_cluster_blocks(self) -> int:
        """How many blocks the clusters make, the largest first; no node changes its cluster any more."""
        return self._core.num_cluster_blocks()

    def place_clusters(self, begin: int, end: int, *, threads: int = 1) -> None:
        """Place the clusters of some blocks as wholes. A pass begins with block 0, with empty parts."""
        self._core.place_clusters(begin, end, threads)

    def stream(self, begin: int, end: int, *, threads: int = 1) -> None:
        """Place nodes [begin, end) by the score. A pass begins with node 0, with empty parts."""
        self._core.stream(begin, end, threads)

    def refine(self, begin: int, end: int, *, threads: int = 1) -> None:
        """Move nodes [begin, end) to the part of most of their neighbors, where that has room."""
        self._core.refine(begin, end, threads)

    def parts(self) -> Tensor:
        """int32 (nodes): where each node lies; 65535 before it was placed."""
        return self._core.parts()

    def loads(self) -> Tensor:
        """int64 (parts x limits): what each part holds of what is limited."""
        return self._core.loads()
