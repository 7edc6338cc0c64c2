"""Attention over the in-edges of each destination, with scores that are a sum over both ends (GAT).

One operation, so that the backward pass turns the edges around once and materializes no row per edge. The
bits depend neither on the number of threads, which is torch's setting, nor on the machine's instruction set.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.functional import leaky_relu

from khop.kernels.csc import Csc
from khop.kernels.edge_rows import rows_of_destinations, rows_of_sources
from khop.kernels.segment import check_segment, has_kernels, sum_rows
from khop.kernels.segment_softmax import segment_softmax, softmax_gradient, softmax_rows
from khop.kernels.segment_weighted import edge_dots, segment_weighted_sum, turned_edges, weighted_sum


def segment_attention(
    values: Tensor, sources: Tensor, rows: Tensor | None, indptr: Tensor, indices: Tensor, slope: float
) -> Tensor:
    """Sum the values of each row's neighbors, weighted by a softmax of scores: (rows, width).

    values are (sources, width), scores of sources (sources, heads) and of rows (rows, heads), all of one
    dtype: float32, float64, bfloat16 or float16. The score of an edge is the leaky ReLU, with this slope, of
    the sum of the scores of both ends. The heads share the columns of values evenly, in order. Differentiable
    once.
    """
    check_segment(values, indptr, indices)
    for name, scores, count in (("sources", sources, values.shape[0]), ("rows", rows, indptr.numel() - 1)):
        if scores is not None and (scores.dim() != 2 or scores.shape[0] != count):
            raise ValueError(f"scores of {name} are {tuple(scores.shape)}: must be ({count}, heads)")
    if not sources.shape[1] or values.shape[1] % sources.shape[1]:
        raise ValueError(f"scores of {sources.shape[1]} heads: must divide the {values.shape[1]} columns")
    if not has_kernels(values, indptr) or values.dtype in (torch.bfloat16, torch.float16):
        return segment_attention_reference(values, sources, rows, indptr, indices, slope)
    return _apply(values, sources, rows, indptr.contiguous(), indices.int().contiguous(), slope)


def segment_attention_reference(
    values: Tensor, sources: Tensor, rows: Tensor | None, indptr: Tensor, indices: Tensor, slope: float
) -> Tensor:
    """The same as `segment_attention`, composed of its steps, on any device."""
    weights = segment_softmax(_scores(sources, rows, indptr, indices, slope), indptr)
    return segment_weighted_sum(values, weights, indptr, indices)


def _scores(sources: Tensor, rows: Tensor | None, indptr: Tensor, indices: Tensor, slope: float) -> Tensor:
    """Return the scores of edges before the softmax: (edges, heads)."""
    scores = rows_of_sources(sources, indptr, indices)
    if rows is not None:
        scores = scores + rows_of_destinations(rows, indptr, indices.numel())
    return leaky_relu(scores, slope)


class _Context(FunctionCtx):
    saved_tensors: tuple[Tensor, ...]
    has_rows: bool
    slope: float


class _SegmentAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context,
        values: Tensor,
        sources: Tensor,
        rows: Tensor | None,
        indptr: Tensor,
        indices: Tensor,
        slope: float,
    ) -> Tensor:
        of_rows = None if rows is None else rows.detach()
        scores = _scores(sources.detach(), of_rows, indptr, indices, slope)
        weights = softmax_rows(scores, indptr)
        ctx.save_for_backward(values, scores > 0, weights, indptr, indices)
        ctx.has_rows, ctx.slope = rows is not None, slope
        return weighted_sum(values.detach(), weights, Csc(indptr, indices))

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None, None]:
        values, is_positive, weights, indptr, indices = ctx.saved_tensors
        edges, gradient = Csc(indptr, indices), gradient.contiguous()
        turned, order = turned_edges(edges, values.shape[0])
        of_values = weighted_sum(gradient, weights.index_select(0, order), turned)
        of_weights = edge_dots(values.detach(), gradient, weights.shape[1], edges)
        of_scores = softmax_gradient(weights, of_weights, indptr)
        of_scores = torch.where(is_positive, of_scores, of_scores * ctx.slope)
        of_sources = sum_rows(of_scores, Csc(turned.indptr, order.int()))
        of_rows = None
        if ctx.has_rows:
            places = torch.arange(order.numel(), dtype=torch.int32, device=order.device)
            of_rows = sum_rows(of_scores, Csc(indptr, places))
        return of_values, of_sources, of_rows, None, None, None


# torch has no types for these.
_apply: Callable[[Tensor, Tensor, Tensor | None, Tensor, Tensor, float], Tensor] = _SegmentAttention.apply
