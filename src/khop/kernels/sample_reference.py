"""References of the draws of in-edges: uniform, by weight, and by smallest key (`Labor` and `TopK`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from khop.draw import Neighbors
from khop.kernels.csc import Csc
from khop.kernels.draw_request import DrawRequest, first_above
from khop.kernels.philox import (
    WIDE_DEGREE,
    WORD,
    SourceNumbers,
    mix64_reference,
    philox_reference,
    reduce_wide,
    reduce_words,
)


def sample_uniform_reference(request: DrawRequest) -> Neighbors:
    """Draw uniformly as `sample_hop` does, in plain torch, on any device."""
    hop_rows, fanout = request.rows, request.fanout
    nodes = hop_rows.nodes
    begin, end = hop_rows.bounds(request.csc)
    degree = end - begin
    whole = (degree <= fanout) if not request.replacement else (degree == 0)
    if fanout == -1:
        whole = torch.ones_like(degree, dtype=torch.bool)
    counts = torch.where(whole, degree, fanout)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    rows = torch.repeat_interleave(torch.arange(nodes.numel(), device=nodes.device), counts)
    slots = torch.arange(rows.numel(), device=nodes.device) - offsets[rows]
    if fanout > 0 and not bool(whole.all()):
        drawing = (~whole).nonzero().squeeze(1)
        words = _words(hop_rows.keys()[drawing], hop_rows.ids()[drawing], hop_rows.stream, 2 * fanout)
        picks = (_repeated if request.replacement else _distinct)(words, degree[drawing], fanout)
        lanes = (~whole).cumsum(0) - 1
        drawn = ~whole[rows]
        slots[drawn] = picks[lanes[rows[drawn]], slots[drawn]]
    return request.neighbors(counts, begin[rows] + slots)


def _words(keys: Tensor, ids: Tensor, stream: int, count: int) -> Tensor:
    """Return w(0), ..., w(count - 1) of each row."""
    blocks = []
    for block in range(0, count, 4):
        rest = torch.tensor([stream, block // 4], device=ids.device).expand(ids.numel(), 2)
        counters = torch.cat([torch.stack([ids & WORD, (ids >> 32) & WORD], dim=1), rest], dim=1)
        blocks.append(philox_reference(keys, counters))
    return torch.cat(blocks, dim=1)[:, :count]


def _below(words: Tensor, draw: int, bound: Tensor, degree: Tensor) -> Tensor:
    """Return draw number `draw` of each row, reduced to [0, bound)."""
    wide = reduce_wide(words[:, 2 * draw], words[:, 2 * draw + 1], bound)
    return torch.where(degree < WIDE_DEGREE, reduce_words(words[:, draw], bound), wide)


def _repeated(words: Tensor, degree: Tensor, fanout: int) -> Tensor:
    return torch.stack([_below(words, slot, degree, degree) for slot in range(fanout)], dim=1)


def _distinct(words: Tensor, degree: Tensor, fanout: int) -> Tensor:
    """Floyd's algorithm: slot j draws from the first d - k + j + 1 entries, or takes the last on a repeat."""
    picks = degree.new_full((degree.numel(), fanout), -1)
    for slot in range(fanout):
        last = degree - fanout + slot
        drawn = _below(words, slot, last + 1, degree)
        taken = (picks == drawn[:, None]).any(dim=1)
        picks[:, slot] = torch.where(taken, last, drawn)
    return picks


MOST_REPEATS = 64  # of a row; then the remaining edges are drawn from exactly


def sample_weighted_reference(request: DrawRequest) -> Neighbors:
    """Draw by weight as `sample_hop` does, in plain torch, on any device."""
    assert request.sums is not None  # draws by weight have them
    csc, sums = request.csc, request.sums.values
    hop_rows, fanout = request.rows, request.fanout
    begin, end = hop_rows.bounds(csc)
    degree, first = end - begin, csc.indptr[hop_rows.nodes]
    whole = torch.full_like(degree, fanout == -1, dtype=torch.bool)
    if not request.replacement:
        whole |= degree <= fanout
    lengths = torch.where(whole, degree, max(fanout, 0))
    rows = torch.repeat_interleave(torch.arange(degree.numel(), device=degree.device), lengths)
    slots = torch.arange(rows.numel(), device=degree.device) - (lengths.cumsum(0) - lengths)[rows]
    edges = begin[rows] + slots
    if fanout > 0 and not bool(whole.all()):
        drawing = (~whole).nonzero().squeeze(1)
        weights = _Weights(sums, first[drawing], begin[drawing], end[drawing])
        draws = _Draws(hop_rows.keys()[drawing], hop_rows.ids()[drawing], hop_rows.stream)
        picks = (_repeated_by_weight if request.replacement else _distinct_by_weight)(weights, draws, fanout)
        lanes = (~whole).cumsum(0) - 1
        drawn = ~whole[rows]
        edges[drawn] = picks[lanes[rows[drawn]], slots[drawn]]
    there = _Weights(sums, first[rows], begin[rows], end[rows]).of(edges) > 0
    rows, edges = rows[there], edges[there]
    return request.neighbors(torch.bincount(rows, minlength=degree.numel()), edges)


def row_shares(csc: Csc, sums: Tensor) -> Tensor:
    """Return each edge's share of its row's weight, float64 (edges); 0 in rows without weight."""
    rows = csc.destinations()
    begin, end = csc.indptr[rows], csc.indptr[rows + 1]
    weights = _Weights(sums, begin, begin, end)
    total = weights.total()
    of_edges = weights.of(torch.arange(csc.num_edges, device=sums.device))
    return torch.where(total > 0, of_edges.double() / total.clamp(min=1), 0.0)


def shares_of_edges(request: DrawRequest, edges: Tensor, offsets: Tensor) -> Tensor:
    """Return each drawn edge's share of the weight of all edges that its row may draw, float64 (edges)."""
    assert request.sums is not None  # draws by weight have them
    begin, end = request.rows.bounds(request.csc)
    rows = torch.repeat_interleave(offsets.diff(), output_size=edges.numel())
    first = request.csc.indptr[request.rows.nodes]
    weights = _Weights(request.sums.values, first[rows], begin[rows], end[rows])
    return weights.of(edges).double() / weights.total().clamp(min=1)


@dataclass(frozen=True)
class _Weights:
    """The integer weights of some rows."""

    sums: Tensor
    first: Tensor  # the first edge of each row in the graph
    begin: Tensor
    end: Tensor

    def before(self, edges: Tensor) -> Tensor:
        """Return the sum of the row's weights before each edge."""
        if self.sums.numel() == 0:
            return torch.zeros_like(edges)
        return torch.where(edges == self.first, 0, self.sums[(edges - 1).clamp(min=0)])

    def of(self, edges: Tensor) -> Tensor:
        """Return each edge's weight; 0 for -1 (no edge)."""
        if self.sums.numel() == 0:
            return torch.zeros_like(edges)
        return torch.where(edges < 0, 0, self.sums[edges.clamp(min=0)] - self.before(edges))

    def total(self) -> Tensor:
        """Return the sum of all edges between begin and end."""
        if self.sums.numel() == 0:
            return torch.zeros_like(self.begin)
        last = self.sums[(self.end - 1).clamp(min=0)]
        return torch.where(self.begin == self.end, 0, last - self.before(self.begin))

    def edge_at(self, height: Tensor) -> Tensor:
        """Return the edge that covers a height above the sum before `begin`."""
        return first_above(self.sums, self.begin, self.end, self.before(self.begin) + height)


@dataclass(frozen=True)
class _Draws:
    """The 64-bit draws of some rows."""

    keys: Tensor
    ids: Tensor
    stream: int

    def below(self, numbers: Tensor, bound: Tensor) -> Tensor:
        """Return draw number `numbers` of each row, reduced to [0, bound)."""
        stream = torch.full_like(self.ids, self.stream)
        counters = torch.stack([self.ids & WORD, (self.ids >> 32) & WORD, stream, numbers // 2], dim=1)
        words = philox_reference(self.keys, counters).reshape(-1, 2, 2)
        low, high = words[torch.arange(numbers.numel(), device=numbers.device), numbers % 2].unbind(1)
        return reduce_wide(low, high, bound)


def _repeated_by_weight(weights: _Weights, draws: _Draws, fanout: int) -> Tensor:
    """Return int64 (rows, fanout), edges; -1 where a row has no weight."""
    total = weights.total()
    picks = []
    for slot in range(fanout):
        edges = weights.edge_at(draws.below(torch.full_like(total, slot), total))
        picks.append(torch.where(total > 0, edges, -1))
    return torch.stack(picks, dim=1)


def _distinct_by_weight(weights: _Weights, draws: _Draws, fanout: int) -> Tensor:
    """Return int64 (rows, fanout): the first distinct edges drawn, then -1."""
    total = weights.total()
    picks = torch.full((total.numel(), fanout), -1, device=total.device)
    count, repeats = torch.zeros_like(total), torch.zeros_like(total)
    for number in range(fanout + MOST_REPEATS):
        drawing = (total > 0) & (count < fanout) & (repeats < MOST_REPEATS)
        edges = weights.edge_at(draws.below(torch.full_like(total, number), total))
        seen = (picks == edges[:, None]).any(dim=1)
        new = (drawing & ~seen).nonzero().squeeze(1)
        picks[new, count[new]] = edges[new]
        count[new] += 1
        repeats += drawing & seen
    for _ in range(fanout):
        left = total - _sum_of(weights, picks)
        new = ((left > 0) & (count < fanout)).nonzero().squeeze(1)
        edges = _edge_of_the_rest(weights, picks, draws.below(count + repeats, left))
        picks[new, count[new]] = edges[new]
        count[new] += 1
    return picks


def _sum_of(weights: _Weights, picks: Tensor) -> Tensor:
    """Return the sum of each row's picks."""
    sums = [weights.of(column) for column in picks.unbind(1)]
    return torch.stack(sums, dim=1).sum(dim=1)


def _edge_of_the_rest(weights: _Weights, picks: Tensor, height: Tensor) -> Tensor:
    """Return the edge at a height among unpicked edges; each pick that begins at or below it raises it."""
    base = weights.before(weights.begin)
    ordered = torch.where(picks < 0, torch.iinfo(torch.int64).max, picks).sort(dim=1).values
    for column in ordered.unbind(1):
        pick = torch.where(column == torch.iinfo(torch.int64).max, -1, column)
        lifts = (pick >= 0) & (height >= weights.before(pick) - base)
        height = torch.where(lifts, height + weights.of(pick), height)
    return weights.edge_at(height)


_SIGN = -(1 << 63)


def sample_smallest_reference(request: DrawRequest) -> Neighbors:
    """Draw the edges with the smallest keys as `sample_hop` does, in plain torch, on any device."""
    begin, end = request.rows.bounds(request.csc)
    degree = end - begin
    counts = degree if request.fanout < 0 else degree.clamp(max=request.fanout)
    rows = torch.repeat_interleave(torch.arange(degree.numel(), device=degree.device), degree)
    starts = degree.cumsum(0) - degree
    places = torch.arange(rows.numel(), device=degree.device)
    edges = begin[rows] + places - starts[rows]
    ordered = _sorted_by(rows, *_keys(request, rows, edges))
    kept = torch.zeros_like(rows, dtype=torch.bool)
    kept[ordered] = places - starts[rows[ordered]] < counts[rows[ordered]]
    return request.neighbors(counts, edges[kept])


def _keys(request: DrawRequest, rows: Tensor, edges: Tensor) -> tuple[Tensor, ...]:
    """Return int64 (edges) to sort by within rows, the most significant first."""
    order = request.order
    if not isinstance(order, SourceNumbers):
        assert order is not None  # draws by keys have it
        return (order[edges],)
    ids = request.csc.indices[edges] if request.source_ids is None else request.source_ids[edges]
    ids = ids.long()
    numbers, keys = _occurrences(rows, ids), order.keys(ids)
    keys = torch.where(numbers == 0, keys, mix64_reference(keys ^ numbers))
    return keys ^ _SIGN, ids  # the order of unsigned numbers


def _occurrences(rows: Tensor, ids: Tensor) -> Tensor:
    """Return the number of earlier edges of the same row and source."""
    ordered = _sorted_by(rows, ids)
    is_first = torch.ones_like(rows, dtype=torch.bool)
    is_first[1:] = (rows[ordered].diff() != 0) | (ids[ordered].diff() != 0)
    places = torch.arange(rows.numel(), device=rows.device)
    firsts = torch.where(is_first, places, 0).cummax(0).values if rows.numel() else places
    return torch.empty_like(rows).index_copy_(0, ordered, places - firsts)


def _sorted_by(*keys: Tensor) -> Tensor:
    """Return positions sorted by keys, the most significant first; equal keys keep their order."""
    ordered = torch.arange(keys[0].numel(), device=keys[0].device)
    for key in reversed(keys):
        ordered = ordered[key[ordered].argsort(stable=True)]
    return ordered
