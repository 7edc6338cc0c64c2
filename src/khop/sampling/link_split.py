"""Links dealt to training, validation and test, so that none is seen before it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.draw import DrawKey, mix64, stream
from khop.graph.csc_graph import CscGraph
from khop.kernels.csc import Csc
from khop.kernels.philox import WORD, philox
from khop.schema import EdgeType

_AT_ONCE = 1 << 20  # edges whose numbers are drawn at a time
_BELOW_ALL, _LARGEST = -1, (1 << 63) - 1  # of the numbers
Chosen = Mapping[EdgeType, Tensor]


@dataclass(frozen=True)
class Shares:
    """How many of the links of each type each part gets: a share below 1, or a number."""

    val: float | int
    test: float | int
    disjoint_share: float = 0.0  # of the training links: to be predicted, and in no message

    def __post_init__(self) -> None:
        for name, share in vars(self).items():
            if isinstance(share, bool) or not isinstance(share, int | float):
                raise ValueError(f"{name} {share!r}: must be a share from 0 to below 1, or a number of links")
            is_number = isinstance(share, int) and name != "disjoint_share"
            if not share >= 0 or (not is_number and share >= 1):  # NaN is neither
                raise ValueError(f"{name} {share!r}: must be a share from 0 to below 1, or a number of links")

    def counts(self, edge_type: EdgeType, num_links: int) -> tuple[int, int, int]:
        """Links of validation, of test, and of training that are in no message."""
        val, test = (
            share if isinstance(share, int) else int(share * num_links) for share in (self.val, self.test)
        )
        if num_links == 0:
            raise ValueError(f"links of {edge_type}: there are none to split; leave the edge type out")
        if val + test >= num_links:
            raise ValueError(
                f"val {self.val} and test {self.test} of {num_links:,} links of {edge_type} leave training "
                "none; take less"
            )
        return val, test, int(self.disjoint_share * (num_links - val - test))


@dataclass(frozen=True)
class Part:
    """What one part of a split sees, and what it is asked."""

    graph: CscGraph  # the edges that carry messages
    kept: Chosen  # int64 (edges), where those are in the whole graph's CSC order
    links: Chosen  # int64 (2, links), global ids: sources over destinations
    positions: Chosen  # int64 (links), where the links are in the whole graph's CSC order


@dataclass(frozen=True)
class EdgeSplit:
    """The parts of a split."""

    train: Part
    val: Part
    test: Part


@dataclass(frozen=True)
class _Dealt:
    """The random numbers of the edges of one type and of its reverse, and which of them fall to whom."""

    edge_type: EdgeType
    numbers: Chosen  # int64 (edges), in CSC order
    is_link: Tensor  # bool (edges of the type itself)
    to_test: int  # the largest number of each part
    to_val: int
    to_disjoint: int

    def positions(self, above: int, up_to: int) -> Tensor:
        """Where the links with such numbers are."""
        own = self.numbers[self.edge_type]
        return (self.is_link & (own > above) & (own <= up_to)).nonzero().squeeze(1)

    def kept(self, above: int) -> dict[EdgeType, Tensor]:
        """Where the edges with such numbers are, of the type and of its reverse."""
        return {t: (of_type > above).nonzero().squeeze(1) for t, of_type in self.numbers.items()}


def split_edges(graph: CscGraph, edge_types: Sequence[EdgeType], shares: Shares, key: DrawKey) -> EdgeSplit:
    """Deal the edges of some types, and of their reverse types, to the three parts.

    All edges between two nodes go to the same part, in whichever direction, so that none tells of another.
    Training's messages come from its own edges, validation's from those too, test's from training and
    validation. Of an edge type that is its own reverse, a link stands in one direction only.
    """
    dealt = [_dealt(graph, edge_type, shares, key) for edge_type in edge_types]

    def heard(limits: Sequence[int]) -> tuple[CscGraph, dict[EdgeType, Tensor]]:
        kept: dict[EdgeType, Tensor] = {}
        for one, above in zip(dealt, limits, strict=True):
            kept |= one.kept(above)
        return _only(graph, kept), kept

    def asked(bounds: Sequence[tuple[int, int]]) -> tuple[dict[EdgeType, Tensor], dict[EdgeType, Tensor]]:
        positions = {
            one.edge_type: _as_first_numbered(graph, one.edge_type, one.positions(*of_type))
            for one, of_type in zip(dealt, bounds, strict=True)
        }
        return {t: _ends(graph.csc(t), at) for t, at in positions.items()}, positions

    of_val = heard([one.to_val for one in dealt])
    of_train = heard([one.to_disjoint for one in dealt]) if shares.disjoint_share else of_val
    learnt = [(one.to_val, one.to_disjoint if one.to_disjoint > one.to_val else _LARGEST) for one in dealt]
    return EdgeSplit(
        train=Part(*of_train, *asked(learnt)),
        val=Part(*of_val, *asked([(one.to_test, one.to_val) for one in dealt])),
        test=Part(
            *heard([one.to_test for one in dealt]), *asked([(_BELOW_ALL, one.to_test) for one in dealt])
        ),
    )


def _as_first_numbered(graph: CscGraph, edge_type: EdgeType, positions: Tensor) -> Tensor:
    """Links by destination and place in its row, as they stood before nodes were renumbered."""
    original = graph.original_ids.get(edge_type[2])
    if original is None:
        return positions
    destinations = torch.searchsorted(graph.csc(edge_type).indptr, positions, right=True) - 1
    return positions[original[destinations].argsort(stable=True)]


def _dealt(graph: CscGraph, edge_type: EdgeType, shares: Shares, key: DrawKey) -> _Dealt:
    key = DrawKey(mix64(key.value ^ stream(0, edge_type)))
    reverse = graph.schema.reverse(edge_type)
    numbers = {edge_type: _pair_numbers(graph, edge_type, edge_type, key)}
    if reverse is not None and reverse != edge_type:
        numbers[reverse] = _pair_numbers(graph, edge_type, reverse, key)
    own = numbers[edge_type]
    is_link = torch.ones_like(own, dtype=torch.bool)
    if reverse == edge_type:
        for start in range(0, own.numel(), _AT_ONCE):
            sources, destinations = _ends(graph.csc(edge_type), _chunk(start, own.numel()))
            torch.le(sources, destinations, out=is_link[start : start + _AT_ONCE])
    counts = shares.counts(edge_type, int(is_link.sum()))
    return _Dealt(edge_type, numbers, is_link, *_bounds(own[is_link], counts))


def _chunk(start: int, count: int) -> Tensor:
    return torch.arange(start, min(start + _AT_ONCE, count))


def _ends(csc: Csc, positions: Tensor) -> Tensor:
    """int64 (2, positions): sources over destinations of the edges there."""
    destinations = torch.searchsorted(csc.indptr, positions, right=True) - 1
    return torch.stack([csc.indices[positions].long(), destinations])


def _pair_numbers(graph: CscGraph, edge_type: EdgeType, of: EdgeType, key: DrawKey) -> Tensor:
    """A random number from 0 to 2^63 - 1 for each edge of a type, the same for all between the same nodes.

    `of` is the edge type itself or its reverse.
    """
    originals = (graph.original_ids.get(edge_type[0]), graph.original_ids.get(edge_type[2]))
    csc = graph.csc(of)
    numbers = torch.empty(csc.num_edges, dtype=torch.int64)
    for start in range(0, csc.num_edges, _AT_ONCE):
        ends = _ends(csc, _chunk(start, csc.num_edges))
        sources, destinations = (
            ids if original is None else original[ids]
            for ids, original in zip(ends if of == edge_type else ends.flip(0), originals, strict=True)
        )
        if edge_type[0] == edge_type[2]:
            sources, destinations = torch.minimum(sources, destinations), torch.maximum(sources, destinations)
        counters = torch.stack(
            [sources & WORD, sources >> 32, destinations & WORD, destinations >> 32], dim=1
        )
        words = philox(key.value, counters)
        numbers[start : start + _AT_ONCE] = (words[:, 0] << 31) | (words[:, 1] >> 1)
    return numbers


def _bounds(numbers: Tensor, counts: tuple[int, int, int]) -> tuple[int, int, int]:
    """The largest numbers of test, of validation and of training's disjoint links, in this order."""
    val, test, disjoint = counts
    ends = (test, test + val, test + val + disjoint)
    found = [_BELOW_ALL if end == 0 else int(numbers.kthvalue(end).values) for end in ends]
    return found[0], found[1], found[2]


def _only(graph: CscGraph, kept: Chosen) -> CscGraph:
    """The graph in memory with some edges of some types alone; rows keep their order."""
    edges, columns = dict(graph.edges), dict(graph.columns)
    for edge_type, positions in kept.items():
        csc = graph.csc(edge_type)
        is_kept = torch.zeros(csc.num_edges + 1, dtype=torch.int64)
        is_kept[positions + 1] = 1
        edges[edge_type] = Csc(is_kept.cumsum(0)[csc.indptr], csc.indices[positions])
        columns[edge_type] = {name: c[positions] for name, c in columns.get(edge_type, {}).items()}
    return CscGraph(graph.schema, graph.counts, edges, graph.original_ids, columns)
