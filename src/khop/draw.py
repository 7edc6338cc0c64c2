"""Values that say what to draw: keys, hops, frontiers, rules, and what a hop gives back.

The bits are specified in docs/randomness.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from torch import Tensor

from khop.schema import EdgeType, NodeType

MASK64 = (1 << 64) - 1


class Purpose(IntEnum):
    """What a random number is for. The numbers are part of docs/randomness.md."""

    SHUFFLE = 1
    HOP = 2
    NEGATIVE = 3
    SPLIT = 4
    DROPOUT = 5
    EVALUATION = 6


def mix64(value: int) -> int:
    """SplitMix64's output function (Steele, Lea, Flood 2014): a bijection of 64-bit integers."""
    value = (value + 0x9E3779B97F4A7C15) & MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK64
    return value ^ (value >> 31)


@dataclass(frozen=True)
class DrawKey:
    """The 64-bit Philox key of one batch (or epoch, or split): a pure function of what it is for."""

    value: int

    @classmethod
    def of(cls, run_seed: int, purpose: Purpose, epoch: int = 0, step: int = 0) -> DrawKey:
        """The key of `purpose` in one step of one epoch of the run."""
        value = 0
        for word in (run_seed, int(purpose), epoch, step):
            value = mix64(value ^ (word & MASK64))
        return cls(value)

    def plus(self, draws: int) -> DrawKey:
        """The key of the n-th further draw of the same hop."""
        return DrawKey((self.value + draws) & MASK64)


def stream(hop: int, edge_type: EdgeType) -> int:
    """The 32-bit counter word of a hop (1 = at the seeds) and an edge type: FNV-1a of its name, mixed."""
    digest = 0xCBF29CE484222325
    for byte in "\x1f".join(edge_type).encode():
        digest = ((digest ^ byte) * 0x100000001B3) & MASK64
    return mix64(digest ^ hop) >> 32


@dataclass(frozen=True)
class Uniform:
    """Every neighbour is equally likely."""

    replacement: bool = False


Rule = Uniform


@dataclass(frozen=True)
class Hop:
    """What to draw at one distance from the seeds."""

    number: int  # 1 = the seeds' own neighbours
    fanouts: Mapping[EdgeType, int]  # neighbours per frontier node; -1 = all, 0 = none
    rule: Rule = Uniform()
    edge_ids: bool = False  # whether Neighbors.edges is wanted


@dataclass(frozen=True)
class Frontier:
    """The nodes of one type to expand."""

    nodes: Tensor  # int64 (n), global ids
    until: Tensor | None = None  # int64 (n), no edge or node later than this
    tree: Tensor | None = None  # int64 (n), the position of the seed whose disjoint tree it is


@dataclass(frozen=True)
class Neighbors:
    """The drawn in-edges of a frontier, one edge type, grouped by frontier row."""

    offsets: Tensor  # int64 (frontier + 1)
    nodes: Tensor  # int32 or int64 (edges), global ids of the source type; as wide as the graph stores them
    edges: Tensor | None = None  # int64 (edges), positions in the graph's CSC order, if Hop.edge_ids


NeighborsByType = Mapping[EdgeType, Neighbors]
FrontierByType = Mapping[NodeType, Frontier]
