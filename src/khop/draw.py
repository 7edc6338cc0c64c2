"""Inputs and results of draws: keys, frontiers, neighbors and negatives.

docs/randomness.md specifies the bits.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.arguments import check_word, checked_field, column_name, list_of, truth, whole_number
from khop.schema import EdgeType, NodeType, by_edge_type

RANDOMNESS = 1  # the version of docs/randomness.md
MASK64 = (1 << 64) - 1
MOST_PER_POSITIVE = (1 << 31) - 1

CandidateScore = Literal["dot", "l1", "l2"]
"""Score of a query and candidates: inner product, or the negative L1 or L2 distance."""


class Purpose(IntEnum):
    """Purpose of a random number. The numbers are part of docs/randomness.md."""

    SHUFFLE = 1
    HOP = 2
    NEGATIVE = 3
    SPLIT = 4
    DROPOUT = 5
    EVALUATION = 6
    PRESAMPLE = 7
    WALK = 8


def mix64(value: int) -> int:
    """Apply SplitMix64's output function (Steele, Lea, Flood 2014), a bijection of 64-bit integers."""
    value = (value + 0x9E3779B97F4A7C15) & MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK64
    return value ^ (value >> 31)


@dataclass(frozen=True)
class DrawKey:
    """The 64-bit Philox key of one batch (or epoch, or split): a pure function of its purpose.

    A key of a step also has the key of its epoch, from which the keys of other steps follow.

    Args:
        value: The key, 0 to 2^64 - 1.
        of_epoch: Key of the epoch. None (default): not the key of an epoch's step.
        step: Step within the epoch, 0 (default) without an epoch.
    Raises:
        ValueError: The key is not a whole number from 0 to 2^64 - 1.
    Example:
        >>> key = khop.DrawKey(1)
        >>> key.plus(2)
        DrawKey(value=3)
    """

    value: int
    of_epoch: int | None = field(default=None, compare=False, repr=False)
    step: int = field(default=0, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", whole_number("key", self.value, 0, MASK64))

    @classmethod
    def of(cls, run_seed: int, purpose: Purpose, epoch: int = 0, step: int = 0) -> DrawKey:
        """Return the key of one step of one epoch of the run.

        Args:
            run_seed: Seed of the run.
            purpose: Purpose of the random numbers.
            epoch: Epoch, default 0.
            step: Step within the epoch, default 0.
        """
        value = 0
        named = {"seed": run_seed, "purpose": purpose, "epoch": epoch, "step": step}
        *words, last = (whole_number(name, word, most=MASK64) & MASK64 for name, word in named.items())
        for word in words:
            value = mix64(value ^ word)
        return cls(mix64(value ^ last), value, last)

    def plus(self, draws: int) -> DrawKey:
        """Return the key of another draw in the same hop.

        Args:
            draws: Number of earlier draws.
        """
        return replace(self, value=(self.value + draws) & MASK64)

    def at_step(self, step: int) -> DrawKey:
        """Return the key of the same draw at another step of the epoch; without an epoch, this key.

        Args:
            step: The other step.
        """
        if self.of_epoch is None:
            return self
        added = self.value - mix64(self.of_epoch ^ self.step)
        return DrawKey(
            (mix64(self.of_epoch ^ (step & MASK64)) + added) & MASK64, self.of_epoch, step & MASK64
        )


@lru_cache(maxsize=4096)
def stream(hop: int, names: tuple[str, ...]) -> int:
    """Return the 32-bit counter word of a hop (1 = at the seeds) and an edge type, or of a node type.

    It is the FNV-1a hash of the type's names, mixed with the hop.
    """
    digest = 0xCBF29CE484222325
    for byte in "\x1f".join(names).encode():
        digest = ((digest ^ byte) * 0x100000001B3) & MASK64
    return mix64(digest ^ hop) >> 32


@dataclass(frozen=True)
class Frontier:
    """The nodes of one type to expand."""

    nodes: Tensor  # int64 (n), global ids
    until: Tensor | None = None  # int64 (n), time limit: edges and nodes are not later; required by Temporal
    tree: Tensor | None = None  # int64 (n), the position of the seed of the node's disjoint tree

    @property
    def fields(self) -> dict[str, Tensor]:
        """The given fields other than the nodes, by name."""
        fields = (("until", self.until), ("tree", self.tree))
        return {name: values for name, values in fields if values is not None}


@dataclass(frozen=True)
class Neighbors:
    """The drawn in-edges of a frontier, one edge type, grouped by frontier row."""

    offsets: Tensor  # int64 (frontier + 1)
    nodes: Tensor  # int32 or int64 (edges), global ids of the source type; as wide as the graph stores them
    edges: Tensor | None = None  # int64 (edges), positions in the graph's CSC order, if Hop.edge_ids
    weights: Tensor | None = None  # float32 (edges), final coefficients, if Rule.has_weights
    times: Tensor | None = None  # int64 (edges), if Rule.has_times; an edge without one has its row's limit

    def by_row(self, values: Tensor) -> Tensor:
        """Repeat a value per frontier row for each of the row's edges."""
        return torch.repeat_interleave(values, self.offsets.diff(), output_size=self.nodes.numel())


NeighborsByType = Mapping[EdgeType, Neighbors]
FrontierByType = Mapping[NodeType, Frontier]


class NegativeMode(StrEnum):
    """Arrangement of negatives in a batch.

    Example:
        >>> khop.UniformNegatives(mode="triplet").mode
        <NegativeMode.TRIPLET: 'triplet'>
    """

    BINARY = "binary"
    """Separate pairs, labeled 0."""
    TRIPLET = "triplet"
    """Additional destinations of the link's source."""


@dataclass(frozen=True)
class UniformNegatives:
    """Negatives drawn for every link, uniformly among all nodes of the type.

    The negatives of a link may contain duplicates.

    Args:
        per_positive: Negatives per link and replaced endpoint, default 1.
        mode: Arrangement in a batch: "binary" (default) as pairs labeled 0, or "triplet".
        exact: Draw only non-neighbors of the source, and not the source itself. By default, some negatives
            may be neighbors of the source.
        group: Number of consecutive links, in the epoch's global order, that share their negatives on any
            number of ranks, so that batches have fewer nodes. Time limits still apply to each link.
            Default 1: not shared. Cannot be combined with `exact`.
        corrupt: Endpoints to replace: "destination" (default), "source" or "both". Sources are drawn as
            destinations of the reverse edge type.
    Raises:
        ValueError: A setting is invalid, or `group` is above 1 with `exact`.
    Example:
        >>> sampler = khop.LinkSampler(khop.open_graph("debian"), [5], negatives=khop.UniformNegatives(4))
        >>> batch = khop.Loader(sampler, khop.Links([[0, 1], [2, 3]]), batch_size=2).batch(epoch=0, step=0)
        >>> batch.links["package", "linked", "package"].pairs_per_link
        5
    """

    per_positive: int = 1
    mode: NegativeMode = NegativeMode.BINARY
    exact: bool = False
    group: int = 1
    corrupt: Corrupt = "destination"

    def __post_init__(self) -> None:
        _check_negatives(self)


@dataclass(frozen=True)
class DegreeNegatives:
    """Negatives with probability proportional to a power of the node's in-degree.

    The in-degree counts edges of the link's type. A node without in-edges is never drawn.

    Args:
        per_positive: Negatives per link and replaced endpoint, default 1.
        mode: Arrangement in a batch: "binary" (default) or "triplet", as in `UniformNegatives`.
        exact: Draw only nodes without an edge from the source, as in `UniformNegatives`; default False.
        power: Exponent of the in-degree: 0.25, 0.5, 0.75 (default, as in word2vec) or 1.0. The weights
            are then exact integers.
        group: Number of consecutive links that share their negatives, default 1.
        corrupt: Endpoints to replace: "destination" (default), "source" or "both".
    Raises:
        ValueError: A setting is invalid, or `group` is above 1 with `exact`.
    Example:
        >>> graph, links = khop.open_graph("debian"), khop.Links([[0, 1], [2, 3]])
        >>> links = khop.with_negatives(graph, links, khop.DegreeNegatives(5, power=0.5))
        >>> links.negatives["package", "linked", "package"].shape
        torch.Size([2, 5])
    """

    per_positive: int = 1
    mode: NegativeMode = NegativeMode.BINARY
    exact: bool = False
    power: float = 0.75
    group: int = 1
    corrupt: Corrupt = "destination"

    def __post_init__(self) -> None:
        _check_negatives(self)
        if self.power not in (0.25, 0.5, 0.75, 1.0):
            raise ValueError(
                f"power {self.power!r}: must be 0.25, 0.5, 0.75 or 1.0; for 0 take UniformNegatives"
            )


@dataclass(frozen=True)
class WeightedNegatives:
    """Negatives with probability proportional to a column; a node of weight zero is never drawn.

    Args:
        column: Column of the destination type with one number per node, zero or more.
        per_positive: Negatives per link and replaced endpoint, default 1.
        mode: Arrangement in a batch: "binary" (default) or "triplet", as in `UniformNegatives`.
        exact: Draw only nodes without an edge from the source, as in `UniformNegatives`; default False.
        group: Number of consecutive links that share their negatives, default 1.
        corrupt: Endpoints to replace: "destination" (default), "source" or "both".
    Raises:
        ValueError: A setting is invalid, or `group` is above 1 with `exact`.
    Example:
        >>> popular = {"popular": torch.tensor([0.0, 3.0, 0.0])}
        >>> nodes = {"user": khop.NodeTable(2), "item": khop.NodeTable(columns=popular)}
        >>> edges = {"user buys item": khop.EdgeTable(torch.tensor([0, 1]), torch.tensor([0, 2]))}
        >>> graph = khop.open_graph(khop.write_graph(tmp / "graph", nodes, edges))
        >>> links = khop.Links([[0, 1], [0, 2]])
        >>> khop.with_negatives(graph, links, khop.WeightedNegatives("popular")).negatives
        {('user', 'buys', 'item'): tensor([[1],
                [1]])}
    """

    column: str
    per_positive: int = 1
    mode: NegativeMode = NegativeMode.BINARY
    exact: bool = False
    group: int = 1
    corrupt: Corrupt = "destination"

    def __post_init__(self) -> None:
        column_name(self.column)
        _check_negatives(self)


@dataclass(frozen=True)
class GivenNegatives:
    """Negatives given with the links, `khop.Links(negatives=...)`, without drawing any.

    Args:
        mode: Arrangement in a batch: "binary" (default) or "triplet", as in `UniformNegatives`.
    Raises:
        ValueError: There is no such mode.
    Example:
        >>> links = khop.Links([[0, 1], [2, 3]], negatives=[[5, 6], [7, 8]])
        >>> graph, negatives = khop.open_graph("debian"), khop.GivenNegatives(mode="triplet")
        >>> sampler = khop.LinkSampler(graph, [5], negatives=negatives)
        >>> batch = khop.Loader(sampler, links, batch_size=2).batch(epoch=0, step=0)
        >>> batch.links["package", "linked", "package"].negatives.shape
        torch.Size([2, 2])
    """

    mode: NegativeMode = NegativeMode.BINARY

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", _mode(self.mode))


@dataclass(frozen=True, eq=False)
class TableNegatives:
    """Negatives read from a table with one row per source, such as hard negatives, without drawing any.

    The table may be updated in place between epochs: `table.copy_(khop.hard_negatives(...))`. If it is a
    buffer of the model, it is saved in checkpoints.

    Args:
        table: Global ids of the destination type, (sources, k): an int64 tensor, a NumPy array, nested lists,
            or a table or Series of lists; for several edge types a mapping by type. A tensor, and a writable
            array of int64, share their memory.
        mode: Arrangement in a batch: "binary" (default) or "triplet", as in `UniformNegatives`.
    Raises:
        ValueError: A table does not have whole numbers (sources, k), or there is no such mode.
    Example:
        >>> table = khop.hard_negatives(torch.eye(4), torch.eye(4), keep=2)
        >>> khop.TableNegatives(table, mode="triplet").table.shape
        torch.Size([4, 2])
    """

    table: Tensor | npt.ArrayLike | Mapping[EdgeType, Tensor] | Mapping[str, Tensor]
    mode: NegativeMode = NegativeMode.BINARY

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", _mode(self.mode))
        if isinstance(self.table, Mapping) and self.table:
            tables = {edge_type: _table(given) for edge_type, given in by_edge_type(self.table).items()}
            object.__setattr__(self, "table", tables)
        else:
            object.__setattr__(self, "table", _table(self.table))

    def table_of(self, edge_type: EdgeType) -> Tensor:
        """Return the table of an edge type, or the only table.

        Args:
            edge_type: The edge type.
        """
        if isinstance(self.table, Tensor):
            return self.table
        assert isinstance(self.table, Mapping)  # made so
        found = by_edge_type(self.table).get(edge_type)
        if found is None:
            raise ValueError(
                f"tables of negatives for {list(self.table)}: {edge_type} has links, but no table; give one"
            )
        return found


def _table(given: object) -> Tensor:
    """Return a table of negatives; tensors, and writable NumPy arrays of int64, keep their memory."""
    table = given if isinstance(given, Tensor) else _rows(given)
    if table is not None and table.dtype == torch.int64 and table.dim() == 2:
        return table
    given_text = " ".join(repr(given).split())  # of a Series it has several lines
    what = given_text if table is None else f"{table.dtype} {tuple(table.shape)}"
    raise ValueError(f"table {what}: must be int64 (sources, k), as khop.hard_negatives gives")


def _rows(given: object) -> Tensor | None:
    """Return whole numbers of an array, of nested lists, or of a table or Series of lists; else None."""
    array: Any = given.to_numpy() if hasattr(given, "to_numpy") else given
    if not isinstance(array, np.ndarray) or array.dtype == object:
        try:
            array = np.array([list(row) for row in array])
        except (TypeError, ValueError):
            return None
    if array.ndim != 2 or not np.can_cast(array.dtype, np.int64):
        return torch.from_numpy(array) if array.dtype.kind == "f" and array.ndim == 2 else None
    return torch.from_numpy(np.require(array, np.int64, ["C", "W"]))


@dataclass(frozen=True)
class MixedNegatives:
    """Several kinds of negatives for each link, one after another.

    Args:
        parts: Two or more kinds of negatives, with the same `mode` and the same `corrupt`; at most one
            `GivenNegatives`.
    Raises:
        ValueError: The parts do not fit together.
    Example:
        >>> mixed = khop.MixedNegatives((khop.UniformNegatives(4, group=64), khop.DegreeNegatives(2)))
        >>> mixed.mode
        <NegativeMode.BINARY: 'binary'>
    """

    parts: tuple[
        UniformNegatives | DegreeNegatives | WeightedNegatives | GivenNegatives | TableNegatives, ...
    ]

    def __post_init__(self) -> None:
        remedy = "for example (khop.UniformNegatives(4, group=64), khop.DegreeNegatives(4))"
        object.__setattr__(self, "parts", tuple(list_of("parts", self.parts, remedy.removeprefix("give "))))
        if len(self.parts) < 2:
            raise ValueError(f"parts {self.parts!r}: must be two or more kinds of negatives; {remedy}")
        for part in self.parts:
            if not isinstance(part, DrawnNegatives | GivenNegatives | TableNegatives):
                raise ValueError(f"parts {self.parts!r}: {part!r} is not a kind of negatives; {remedy}")
        if sum(isinstance(part, GivenNegatives) for part in self.parts) > 1:
            raise ValueError(
                f"parts {self.parts!r}: links have a single set of given negatives; leave one out"
            )
        ends = {p.corrupt if isinstance(p, DrawnNegatives) else "destination" for p in self.parts}
        if len(ends) > 1 or len({part.mode for part in self.parts}) > 1:
            raise ValueError(f"parts {self.parts!r}: must have the same mode and the same corrupt")

    @property
    def mode(self) -> NegativeMode:
        """The arrangement, which all parts share."""
        return self.parts[0].mode


Corrupt = Literal["destination", "source", "both"]  # the endpoints of a link that negatives replace
DrawnNegatives = UniformNegatives | DegreeNegatives | WeightedNegatives
Negatives = DrawnNegatives | GivenNegatives | TableNegatives | MixedNegatives


def check_negatives(negatives: Negatives) -> None:
    """Raise ValueError for a value that is not a kind of negatives."""
    if not isinstance(negatives, Negatives):
        raise ValueError(
            f"negatives {negatives!r}: must be khop.UniformNegatives(...), DegreeNegatives(...), "
            "GivenNegatives(), TableNegatives(table), MixedNegatives(...) or None"
        )


def check_drawn(negatives: DrawnNegatives) -> None:
    """Raise ValueError for negatives that cannot be drawn."""
    check_negatives(negatives)
    if isinstance(negatives, GivenNegatives | TableNegatives | MixedNegatives):
        raise ValueError(
            f"{negatives}: cannot be sampled; use khop.UniformNegatives(...) or DegreeNegatives(...)"
        )


def _mode(given: NegativeMode | str) -> NegativeMode:
    if given not in tuple(NegativeMode):
        raise ValueError(f"mode {given!r}: must be one of {[str(mode) for mode in NegativeMode]}")
    return NegativeMode(given)


def _check_negatives(negatives: DrawnNegatives) -> None:
    object.__setattr__(negatives, "mode", _mode(negatives.mode))
    checked_field(negatives, "exact", truth)
    check_word("corrupt", negatives.corrupt, Corrupt)
    most = MOST_PER_POSITIVE
    if checked_field(negatives, "per_positive", whole_number, 1) > most:
        raise ValueError(f"per_positive {negatives.per_positive}: must be at most {most:,} for each link")
    if checked_field(negatives, "group", whole_number, 1) > 1 and negatives.exact:
        raise ValueError(
            f"group {negatives.group} with exact: exact negatives differ by source and cannot be shared; "
            "leave one of them out"
        )


@dataclass(frozen=True)
class Positives:
    """Links of one edge type that need negatives."""

    sources: Tensor  # int64 (n), global ids
    positions: Tensor  # int64 (n), in the epoch's global order; draws are keyed by it
    until: Tensor | None = None  # int64 (n), time limit of destinations, by their column `time_column`
    time_column: str | None = None
    # int64 (n): exact negatives only exclude edges of this relation, by the column `relation_column`
    relations: Tensor | None = None
    relation_column: str | None = None
