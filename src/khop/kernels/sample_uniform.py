"""In-edges of a frontier, all neighbors equally likely: the reference of the draw of `Uniform`."""

from __future__ import annotations

import torch
from torch import Tensor

from khop.draw import Neighbors
from khop.kernels.draw_request import DrawRequest
from khop.kernels.philox import WIDE_DEGREE, WORD, philox_reference, reduce_wide, reduce_words


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
    """Floyd: slot j draws from the first d - k + j + 1 entries; if that is taken, the last one is free."""
    picks = degree.new_full((degree.numel(), fanout), -1)
    for slot in range(fanout):
        last = degree - fanout + slot
        drawn = _below(words, slot, last + 1, degree)
        taken = (picks == drawn[:, None]).any(dim=1)
        picks[:, slot] = torch.where(taken, last, drawn)
    return picks
