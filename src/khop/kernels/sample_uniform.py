"""In-edges of a frontier, each neighbour equally likely: the draw behind `Uniform`."""

from __future__ import annotations

import torch
from torch import Tensor

import khop._core as _core
from khop.draw import DrawKey, Neighbors, Uniform
from khop.kernels.csc import Csc
from khop.kernels.philox import (
    WIDE_DEGREE,
    WORD,
    mix64_reference,
    philox_reference,
    reduce_wide,
    reduce_words,
    signed,
)


def sample_uniform(
    csc: Csc,
    nodes: Tensor,
    fanout: int,
    rule: Uniform,
    key: DrawKey,
    stream: int,
    *,
    original_ids: Tensor | None = None,
    tree: Tensor | None = None,
    edge_ids: bool = False,
    threads: int = 1,
) -> Neighbors:
    """Draw up to `fanout` in-edges (-1: all) of every node of `nodes`, rows in its order.

    A row's picks depend on (key, tree, stream, original id, degree) alone: not on the rest of the frontier,
    the device, the number of threads or the processor. `original_ids` maps rows of `csc` to the ids that
    draws are keyed by; `tree` gives each frontier node the position of its disjoint tree's seed. A row that
    has no more edges than are wanted comes whole, in row order. Runs without the GIL.
    """
    if not -1 <= fanout < 1 << 31:
        raise ValueError(f"fanout {fanout}: must be from 0 to 2^31 - 1, or -1 for all neighbours")
    _check_ids("nodes", nodes, csc, nodes.numel())
    if original_ids is not None:
        _check_ids("original_ids", original_ids, csc, csc.num_rows)
    if tree is not None:
        _check_ids("tree", tree, csc, nodes.numel())
    if csc.indptr.device.type != "cpu":
        return sample_uniform_reference(csc, nodes, fanout, rule, key, stream, original_ids, tree, edge_ids)
    offsets, drawn, edges = _core.sample_uniform(
        csc.indptr,
        csc.indices,
        nodes.contiguous(),
        fanout,
        rule.replacement,
        key.value,
        stream,
        None if original_ids is None else original_ids.contiguous(),
        None if tree is None else tree.contiguous(),
        edge_ids,
        threads,
    )
    return Neighbors(offsets, drawn, edges)


def _check_ids(name: str, ids: Tensor, csc: Csc, count: int) -> None:
    if ids.dtype != torch.int64 or ids.shape != (count,) or ids.device != csc.indptr.device:
        given = f"{name} is {ids.dtype} {tuple(ids.shape)} on {ids.device}"
        raise ValueError(f"{given}: must be int64 ({count}) on {csc.indptr.device}")


def sample_uniform_reference(
    csc: Csc,
    nodes: Tensor,
    fanout: int,
    rule: Uniform,
    key: DrawKey,
    stream: int,
    original_ids: Tensor | None,
    tree: Tensor | None,
    edge_ids: bool,
) -> Neighbors:
    """`sample_uniform` in plain torch, on any device."""
    outside = nodes[(nodes < 0) | (nodes >= csc.num_rows)]
    if outside.numel():
        raise ValueError(
            f"frontier node {int(outside[0])}: not in [0, {csc.num_rows}), the rows of the graph"
        )
    begin, end = csc.indptr[nodes], csc.indptr[nodes + 1]
    degree = end - begin
    whole = (degree <= fanout) if not rule.replacement else (degree == 0)
    if fanout == -1:
        whole = torch.ones_like(degree, dtype=torch.bool)
    counts = torch.where(whole, degree, fanout)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    rows = torch.repeat_interleave(torch.arange(nodes.numel(), device=nodes.device), counts)
    slots = torch.arange(rows.numel(), device=nodes.device) - offsets[rows]
    if fanout > 0 and not bool(whole.all()):
        drawing = (~whole).nonzero().squeeze(1)
        ids = nodes if original_ids is None else original_ids[nodes]
        words = _words(_keys(key, tree, nodes)[drawing], ids[drawing], stream, 2 * fanout)
        picks = (_repeated if rule.replacement else _distinct)(words, degree[drawing], fanout)
        lanes = (~whole).cumsum(0) - 1
        drawn = ~whole[rows]
        slots[drawn] = picks[lanes[rows[drawn]], slots[drawn]]
    edges = begin[rows] + slots
    return Neighbors(offsets, csc.indices[edges], edges if edge_ids else None)


def _keys(key: DrawKey, tree: Tensor | None, nodes: Tensor) -> Tensor:
    """The key of each frontier node as two words."""
    keys = torch.full_like(nodes, signed(key.value))
    if tree is not None:
        keys = mix64_reference(keys ^ mix64_reference(tree))
    return torch.stack([keys & WORD, (keys >> 32) & WORD], dim=1)


def _words(keys: Tensor, ids: Tensor, stream: int, count: int) -> Tensor:
    """w(0), ..., w(count - 1) of each row."""
    blocks = []
    for block in range(0, count, 4):
        rest = torch.tensor([stream, block // 4], device=ids.device).expand(ids.numel(), 2)
        counters = torch.cat([torch.stack([ids & WORD, (ids >> 32) & WORD], dim=1), rest], dim=1)
        blocks.append(philox_reference(keys, counters))
    return torch.cat(blocks, dim=1)[:, :count]


def _below(words: Tensor, draw: int, bound: Tensor, degree: Tensor) -> Tensor:
    """Draw number `draw` of each row, reduced to [0, bound)."""
    wide = reduce_wide(words[:, 2 * draw], words[:, 2 * draw + 1], bound)
    return torch.where(degree < WIDE_DEGREE, reduce_words(words[:, draw], bound), wide)


def _repeated(words: Tensor, degree: Tensor, fanout: int) -> Tensor:
    return torch.stack([_below(words, slot, degree, degree) for slot in range(fanout)], dim=1)


def _distinct(words: Tensor, degree: Tensor, fanout: int) -> Tensor:
    """Floyd: slot j draws from the first d - k + j + 1 entries; if that is taken, the last of them is not."""
    picks = degree.new_full((degree.numel(), fanout), -1)
    for slot in range(fanout):
        last = degree - fanout + slot
        drawn = _below(words, slot, last + 1, degree)
        taken = (picks == drawn[:, None]).any(dim=1)
        picks[:, slot] = torch.where(taken, last, drawn)
    return picks
