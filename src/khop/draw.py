"""Inputs and results of draws: keys, hops, frontiers, rules and neighbors.

The bits are specified in docs/randomness.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import NoReturn

from torch import Tensor

from khop.arguments import instance_of, shown, truth, whole_number
from khop.schema import EdgeType, NodeType, Schema

MASK64 = (1 << 64) - 1
MOST_PER_POSITIVE = (1 << 31) - 1


class Purpose(IntEnum):
    """Purpose of a random number. The numbers are part of docs/randomness.md."""

    SHUFFLE = 1
    HOP = 2
    NEGATIVE = 3
    SPLIT = 4
    DROPOUT = 5
    EVALUATION = 6


def mix64(value: int) -> int:
    """Apply SplitMix64's output function (Steele, Lea, Flood 2014), a bijection of 64-bit integers."""
    value = (value + 0x9E3779B97F4A7C15) & MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK64
    return value ^ (value >> 31)


@dataclass(frozen=True)
class DrawKey:
    """The 64-bit Philox key of one batch (or epoch, or split): a pure function of its purpose."""

    value: int

    def __post_init__(self) -> None:
        whole_number("key", self.value, 0, MASK64)

    @classmethod
    def of(cls, run_seed: int, purpose: Purpose, epoch: int = 0, step: int = 0) -> DrawKey:
        """Return the key of `purpose` in one step of one epoch of the run."""
        value = 0
        for name, number in (("seed", run_seed), ("purpose", purpose), ("epoch", epoch), ("step", step)):
            whole_number(name, number, most=MASK64)
        for word in (run_seed, int(purpose), epoch, step):
            value = mix64(value ^ (word & MASK64))
        return cls(value)

    def plus(self, draws: int) -> DrawKey:
        """Return the key of the n-th further draw of the same hop."""
        return DrawKey((self.value + draws) & MASK64)


@lru_cache(maxsize=4096)
def stream(hop: int, edge_type: EdgeType) -> int:
    """Return the 32-bit counter word of a hop (1 = at the seeds) and an edge type.

    It is the FNV-1a hash of the type's name, mixed with the hop.
    """
    digest = 0xCBF29CE484222325
    for byte in "\x1f".join(edge_type).encode():
        digest = ((digest ^ byte) * 0x100000001B3) & MASK64
    return mix64(digest ^ hop) >> 32


@dataclass(frozen=True)
class Uniform:
    """Every neighbor is equally likely."""

    replacement: bool = False

    def __post_init__(self) -> None:
        truth("replacement", self.replacement)


@dataclass(frozen=True)
class Weighted:
    """Edges are drawn in proportion to their weights; an edge of weight zero is never drawn.

    Without replacement this is successive sampling: each pick is in proportion to the remaining weights. Edge
    types without the column are drawn uniformly.
    """

    column: str  # an edge column: one number each, zero or more
    replacement: bool = False

    def __post_init__(self) -> None:
        _check_column_name(self.column)
        truth("replacement", self.replacement)


class Keep(StrEnum):
    """Selection among the edges that a time limit allows."""

    ANY = "any"  # as the inner rule draws
    LATEST = "latest"  # the last `fanout` edges; nothing is drawn

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ValueError(f"keep {value!r}: must be one of {[str(keep) for keep in cls]}")


@dataclass(frozen=True)
class Temporal:
    """Only edges and nodes that are not later than the seed; `inner` draws among these.

    The time of an edge is its own column, or the column of its source node, or the later of both. Edge types
    with neither column are not limited. With a window, the time also lies in [limit - before, limit + after].
    """

    column: str  # of edges or of nodes, integers; rows of the graph are sorted by it
    keep: Keep = Keep.ANY
    window: tuple[int, int] | None = None  # (before, after); after is 0 or less
    inner: Uniform | Weighted = Uniform()

    def __post_init__(self) -> None:
        _check_column_name(self.column)
        object.__setattr__(self, "keep", Keep(self.keep))
        instance_of(
            "inner", self.inner, (Uniform, Weighted), "must be khop.Uniform() or khop.Weighted(column)"
        )
        if self.keep is Keep.LATEST and self.inner != Uniform():
            raise ValueError(
                f"keep=LATEST with {self.inner}: the latest edges are not drawn; leave inner out"
            )
        if self.window is None:
            return
        if not isinstance(self.window, Sequence) or len(self.window) != 2 or isinstance(self.window, str):
            raise ValueError(f"window {shown(self.window)}: must be two whole numbers, (before, after)")
        before, after = (whole_number(f"window {self.window}:", time) for time in self.window)
        object.__setattr__(self, "window", (before, after))
        if after > 0:
            raise ValueError(f"window {self.window}: after {after} would show the future; give 0 or less")
        if -after > before:
            raise ValueError(f"window {self.window}: no time lies in it; before must be {-after} or more")


Rule = Uniform | Weighted | Temporal


def _check_column_name(name: object) -> None:
    instance_of("column", name, str, "must be the name of a column, as text")


def check_rule(rule: Rule, schema: Schema) -> None:
    """Raise ValueError unless some edge type has each column that the rule names, with usable numbers."""
    instance_of(
        "rule",
        rule,
        (Uniform, Weighted, Temporal),
        "must be khop.Uniform(), Weighted(column) or Temporal(column)",
    )
    if isinstance(rule, Temporal):
        check_rule(rule.inner, schema)
        sources = {edge_type[0] for edge_type in schema.edge_types}
        _check_column(schema, rule, "integer", (*schema.edge_types, *sources))
    elif isinstance(rule, Weighted):
        _check_column(schema, rule, "number", schema.edge_types)


_NOT_INTEGERS = ("float16", "float32", "float64", "bfloat16", "bool")


def _check_column(
    schema: Schema, rule: Weighted | Temporal, kind: str, types: Sequence[NodeType | EdgeType]
) -> None:
    columns = {type_: schema.columns.get(type_, {}) for type_ in types}
    having = {type_: of_type[rule.column] for type_, of_type in columns.items() if rule.column in of_type}
    if not having:
        there = {type_: sorted(of_type) for type_, of_type in columns.items()}
        raise ValueError(f"{rule}: no column {rule.column!r}; there are {there}")
    for type_, spec in having.items():
        if spec.shape or (kind == "integer" and spec.dtype in _NOT_INTEGERS):
            raise ValueError(
                f"{rule}: column {rule.column!r} of {type_!r} is {spec.dtype} of shape {spec.shape}: "
                f"one {kind} per row is needed; write the graph with such a column"
            )


@dataclass(frozen=True)
class Hop:
    """Parameters of the draws at one distance from the seeds."""

    number: int  # 1 = the direct neighbors of the seeds
    fanouts: Mapping[EdgeType, int]  # neighbors per frontier node; -1 = all, 0 = none
    rule: Rule = Uniform()
    edge_ids: bool = False  # True: return Neighbors.edges
    threads: int = 1  # threads that may share the frontier; no number changes a draw


@dataclass(frozen=True)
class Frontier:
    """The nodes of one type to expand."""

    nodes: Tensor  # int64 (n), global ids
    until: Tensor | None = None  # int64 (n), no edge or node later than this; required by Temporal
    tree: Tensor | None = None  # int64 (n), the position of the seed of the node's disjoint tree


@dataclass(frozen=True)
class Neighbors:
    """The drawn in-edges of a frontier, one edge type, grouped by frontier row."""

    offsets: Tensor  # int64 (frontier + 1)
    nodes: Tensor  # int32 or int64 (edges), global ids of the source type; as wide as the graph stores them
    edges: Tensor | None = None  # int64 (edges), positions in the graph's CSC order, if Hop.edge_ids


NeighborsByType = Mapping[EdgeType, Neighbors]
FrontierByType = Mapping[NodeType, Frontier]


class NegativeMode(StrEnum):
    """Arrangement of negatives in a batch."""

    BINARY = "binary"  # as separate pairs, labeled 0
    TRIPLET = "triplet"  # as further destinations of the link's source


@dataclass(frozen=True)
class UniformNegatives:
    """Destinations drawn for every link, uniformly among all nodes of the type.

    Some may be partners of the source. With `exact` none is: the candidates are the nodes without an edge of
    the type from the source, and without the source itself. Draws occasionally repeat a node.
    """

    per_positive: int = 1
    mode: NegativeMode = NegativeMode.BINARY
    exact: bool = False

    def __post_init__(self) -> None:
        _check_negatives(self)


@dataclass(frozen=True)
class DegreeNegatives:
    """Like UniformNegatives, but the probability of a node is proportional to a power of its in-degree.

    The in-degree counts edges of the link's type. A node without in-edges is never drawn. word2vec uses a
    power of 0.75.
    """

    per_positive: int = 1
    mode: NegativeMode = NegativeMode.BINARY
    exact: bool = False
    power: float = 0.75  # a multiple of 1/4: the weights are then exact integers

    def __post_init__(self) -> None:
        _check_negatives(self)
        if self.power not in (0.25, 0.5, 0.75, 1.0):
            raise ValueError(
                f"power {self.power!r}: must be 0.25, 0.5, 0.75 or 1.0; for 0 take UniformNegatives"
            )


@dataclass(frozen=True)
class WeightedNegatives:
    """Like UniformNegatives, but drawn in proportion to weights; a node of weight zero is never drawn."""

    column: str  # a column of the destination type: one number each, zero or more
    per_positive: int = 1
    mode: NegativeMode = NegativeMode.BINARY
    exact: bool = False

    def __post_init__(self) -> None:
        _check_column_name(self.column)
        _check_negatives(self)


@dataclass(frozen=True)
class GivenNegatives:
    """Negatives given with the links: `Links(negatives=...)`. Nothing is drawn."""

    mode: NegativeMode = NegativeMode.BINARY

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", _mode(self.mode))


DrawnNegatives = UniformNegatives | DegreeNegatives | WeightedNegatives
Negatives = DrawnNegatives | GivenNegatives


def check_negatives(negatives: Negatives) -> None:
    """Raise ValueError for a value that is no kind of negatives."""
    if not isinstance(negatives, Negatives):
        raise ValueError(
            f"negatives {negatives!r}: must be khop.UniformNegatives(...), DegreeNegatives(...), "
            "GivenNegatives() or None"
        )


def check_drawn(negatives: DrawnNegatives) -> None:
    """Raise ValueError for negatives that are not drawn."""
    check_negatives(negatives)
    if isinstance(negatives, GivenNegatives):
        raise ValueError(
            f"{negatives}: are not drawn; take khop.UniformNegatives(...) or DegreeNegatives(...)"
        )


def _mode(given: NegativeMode | str) -> NegativeMode:
    if given not in tuple(NegativeMode):
        raise ValueError(f"mode {given!r}: must be one of {[str(mode) for mode in NegativeMode]}")
    return NegativeMode(given)


def _check_negatives(negatives: DrawnNegatives) -> None:
    object.__setattr__(negatives, "mode", _mode(negatives.mode))
    truth("exact", negatives.exact)
    most = MOST_PER_POSITIVE
    if whole_number("per_positive", negatives.per_positive, 1) > most:
        raise ValueError(f"per_positive {negatives.per_positive}: must be at most {most:,} for each link")


@dataclass(frozen=True)
class Positives:
    """Links of one edge type that need negatives."""

    sources: Tensor  # int64 (n), global ids
    positions: Tensor  # int64 (n), in the epoch's global order; draws are keyed by it
    until: Tensor | None = None  # int64 (n), no destination later than this, by its column `time_column`
    time_column: str | None = None
