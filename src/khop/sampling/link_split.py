"""Links of one type dealt to training, validation and test, so that none is seen before it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
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


@dataclass(frozen=True)
class Shares:
    """How many of the links each part gets: a share below 1, or a number."""

    val: float | int
    test: float | int
    disjoint: float = 0.0  # of the training links: to be predicted, and in no message

    def __post_init__(self) -> None:
        for name, share in vars(self).items():
            is_number = isinstance(share, int) and not isinstance(share, bool)
            if share < 0 or (not is_number and share >= 1) or (name == "disjoint" and share >= 1):
                raise ValueError(f"{name} {share!r}: must be a share from 0 to below 1, or a number of links")

    def counts(self, num_links: int) -> tuple[int, int, int]:
        """Links of validation, of test, and of training that are in no message."""
        val, test = (
            share if isinstance(share, int) else int(share * num_links) for share in (self.val, self.test)
        )
        if val + test >= num_links and num_links:
            raise ValueError(
                f"val {self.val} and test {self.test} of {num_links:,} links leave training none; take less"
            )
        return val, test, int(self.disjoint * (num_links - val - test))


@dataclass(frozen=True)
class Part:
    """What one part of a split sees, and what it is asked."""

    graph: CscGraph  # the edges that carry messages
    kept: Mapping[EdgeType, Tensor]  # int64 (edges), where those are in the whole graph's CSC order
    links: Tensor  # int64 (2, links), global ids: sources over destinations
    positions: Tensor  # int64 (links), where the links are in the whole graph's CSC order


@dataclass(frozen=True)
class EdgeSplit:
    """The parts of a split."""

    train: Part
    val: Part
    test: Part


def split_edges(graph: CscGraph, edge_type: EdgeType, shares: Shares, key: DrawKey) -> EdgeSplit:
    """Deal the edges of a type, and of its reverse type, to the three parts.

    All edges between two nodes go to the same part, in whichever direction, so that none tells of another.
    Training's messages come from its own edges, validation's from those too, test's from training and
    validation. Of an edge type that is its own reverse, a link stands in one direction only.
    """
    key = DrawKey(mix64(key.value ^ stream(0, edge_type)))
    reverse = graph.schema.reverse(edge_type)
    ends = _ends(graph.csc(edge_type))
    numbers = {edge_type: _pair_numbers(graph, edge_type, ends, key)}
    if reverse is not None and reverse != edge_type:
        numbers[reverse] = _pair_numbers(graph, edge_type, _ends(graph.csc(reverse)).flip(0), key)
    own = numbers[edge_type]
    is_link = ends[0] <= ends[1] if reverse == edge_type else torch.ones_like(own, dtype=torch.bool)
    counts = shares.counts(int(is_link.sum()))
    to_test, to_val, to_disjoint = _bounds(own[is_link], counts)

    def part(above: int, up_to: int, messages_above: int) -> Part:
        kept = {t: (of_type > messages_above).nonzero().squeeze(1) for t, of_type in numbers.items()}
        positions = (is_link & (own > above) & (own <= up_to)).nonzero().squeeze(1)
        return Part(_only(graph, kept), kept, ends[:, positions], positions)

    return EdgeSplit(
        train=part(to_val, to_disjoint if counts[2] else _LARGEST, to_disjoint),
        val=part(to_test, to_val, to_val),
        test=part(_BELOW_ALL, to_test, to_test),
    )


def _ends(csc: Csc) -> Tensor:
    """int64 (2, edges): sources over destinations, in CSC order."""
    rows = torch.arange(csc.num_rows)
    return torch.stack([csc.indices.long(), torch.repeat_interleave(rows, csc.indptr.diff())])


def _pair_numbers(graph: CscGraph, edge_type: EdgeType, ends: Tensor, key: DrawKey) -> Tensor:
    """A random number from 0 to 2^63 - 1 for each edge, the same for all edges between the same nodes."""
    originals = (graph.original_ids.get(edge_type[0]), graph.original_ids.get(edge_type[2]))
    numbers = torch.empty(ends.shape[1], dtype=torch.int64)
    for start in range(0, ends.shape[1], _AT_ONCE):
        sources, destinations = (
            ids if original is None else original[ids]
            for ids, original in zip(ends[:, start : start + _AT_ONCE], originals, strict=True)
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


def _only(graph: CscGraph, kept: Mapping[EdgeType, Tensor]) -> CscGraph:
    """The graph in memory with some edges of some types alone; rows keep their order."""
    edges, columns = dict(graph.edges), dict(graph.columns)
    for edge_type, positions in kept.items():
        csc = graph.csc(edge_type)
        is_kept = torch.zeros(csc.num_edges + 1, dtype=torch.int64)
        is_kept[positions + 1] = 1
        edges[edge_type] = Csc(is_kept.cumsum(0)[csc.indptr], csc.indices[positions])
        columns[edge_type] = {name: c[positions] for name, c in columns.get(edge_type, {}).items()}
    return CscGraph(graph.schema, graph.counts, edges, graph.original_ids, columns)
