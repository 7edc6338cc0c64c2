"""In-edges of a hop's frontier, all edge types in one call: the draw of every rule."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

import khop._core as _core
from khop.draw import Neighbors, Uniform, Weighted
from khop.kernels.csc import Csc
from khop.kernels.hop_rows import HopRows
from khop.kernels.rising import Rising
from khop.kernels.sample_uniform import sample_uniform_reference
from khop.kernels.sample_weighted import sample_weighted_reference


@dataclass(frozen=True)
class EdgeDraw:
    """The draw of one edge type."""

    csc: Csc
    rows: HopRows
    fanout: int  # -1: all
    rule: Uniform | Weighted = Uniform()  # noqa: RUF009
    sums: Rising | None = None  # from `weight_sums`, for a weighted rule

    def check(self) -> None:
        """Raise ValueError unless shapes, dtypes and devices are valid for a kernel."""
        self.rows.check(self.csc, self.fanout)
        if self.sums is not None:
            self.sums.check("sums", self.csc)


def sample_hop(draws: Sequence[EdgeDraw], *, edge_ids: bool = False, threads: int = 1) -> list[Neighbors]:
    """Draw up to `fanout` in-edges (-1: all) of every row, uniformly or by weight.

    ValueError if row pointers or sources do not fit the graph; for a single draw it names the damaged row
    and its file.

    A row's picks depend only on (key, tree, stream, original id, its edges). They do not depend on other
    rows, the device, the number of threads or the processor. A row with at most `fanout` edges is returned
    whole, in row order. An edge of weight zero is never drawn, so a row may give fewer edges than both its
    degree and the fanout. Results are views of a few tensors, which are allocated and freed together: twelve
    edge types cost Python little more than one. Runs without the GIL.
    """
    for draw in draws:
        draw.check()
    if any(draw.csc.indptr.device.type != "cpu" for draw in draws):
        return [_reference(draw, edge_ids) for draw in draws]
    rows: dict[int, _core.Rows] = {}
    with draws[0].csc.naming_damage() if len(draws) == 1 else nullcontext():
        offsets, narrow, wide, edges, counts = _core.sample_hop(
            [_as_core(draw, rows) for draw in draws], edge_ids, threads
        )
    nodes = _split(draws, counts, narrow, wide)
    of_edges = [None] * len(draws) if edges is None else edges.split_with_sizes(counts)
    of_rows = offsets.split_with_sizes([draw.rows.nodes.numel() + 1 for draw in draws])
    return [Neighbors(*parts) for parts in zip(of_rows, nodes, of_edges, strict=True)]


def _reference(draw: EdgeDraw, edge_ids: bool) -> Neighbors:
    if isinstance(draw.rule, Weighted) and draw.sums is not None:
        return sample_weighted_reference(
            draw.csc, draw.sums.values, draw.rows, draw.fanout, draw.rule, edge_ids
        )
    rule = Uniform(draw.rule.replacement)
    return sample_uniform_reference(draw.csc, draw.rows, draw.fanout, rule, edge_ids)


def _as_core(draw: EdgeDraw, rows: dict[int, _core.Rows]) -> _core.Draw:
    """Return a draw in the core's form. `rows` holds earlier draws' rows, by their tensor of nodes."""
    of_draw = draw.rows
    # Original ids and trees belong to the nodes: draws that share nodes share both.
    known = rows.get(id(of_draw.nodes))
    if known is None:
        known = rows[id(of_draw.nodes)] = _core.Rows(
            of_draw.nodes.contiguous(), _contiguous(of_draw.original_ids), _contiguous(of_draw.tree)
        )
    return (
        draw.csc.core,
        known,
        draw.fanout,
        draw.rule.replacement,
        of_draw.key.value,
        of_draw.stream,
        _contiguous(of_draw.ranges),
        None if draw.sums is None else draw.sums.values.contiguous(),
        None if draw.sums is None else draw.sums.outline,
    )


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _split(
    draws: Sequence[EdgeDraw], counts: Sequence[int], narrow: Tensor, wide: Tensor | None
) -> Sequence[Tensor]:
    """Return the nodes of each draw from `narrow` (int32) or `wide` (int64)."""
    if wide is None:
        return narrow.split_with_sizes(counts)
    is_wide = [draw.csc.indices.dtype == torch.int64 for draw in draws]
    sizes: dict[bool, list[int]] = {True: [], False: []}
    for of_64, count in zip(is_wide, counts, strict=True):
        sizes[of_64].append(count)
    pieces = {
        True: iter(wide.split_with_sizes(sizes[True])),
        False: iter(narrow.split_with_sizes(sizes[False])),
    }
    return [next(pieces[of_64]) for of_64 in is_wide]
