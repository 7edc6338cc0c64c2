"""Attention over the in-edges of each destination: additive scores (GAT), softmax, and dot products by head.

Rows per edge are not materialized, forward or backward. Results are bit-identical for any number of threads
(torch's setting) and any instruction set.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.functional import leaky_relu

import khop._core as _core
from khop.kernels.choice import Engine, engine
from khop.kernels.csc import Csc, check_offsets
from khop.kernels.memory import pooled
from khop.kernels.segment import (
    DTYPES,
    accumulator,
    check_segment,
    has_kernels,
    rows_of_destinations,
    rows_of_sources,
    sum_rows,
)
from khop.kernels.segment_weighted import (
    edge_dots,
    gradient_of_sources,
    segment_weighted_sum,
    turned_edges,
    weighted_sum,
)


def segment_softmax(scores: Tensor, indptr: Tensor) -> Tensor:
    """Normalize every row's scores to sum 1: exp(score) over the sum of exp over the row's edges.

    scores are (edges) or (edges, heads), each head separately, in CSC order: row i has edges
    `indptr[i]:indptr[i + 1]`. float32, float64, or bfloat16 and float16, which are computed in float32.
    Differentiable once. Results are bit-identical for any number of threads (torch's setting) and any
    instruction set.
    """
    if scores.dim() not in (1, 2) or scores.dtype not in DTYPES:
        raise ValueError(
            f"scores are {scores.dtype} {tuple(scores.shape)}: must be (edges) or (edges, heads), "
            f"of one of {DTYPES}"
        )
    if scores.device != indptr.device:
        raise ValueError(f"scores are on {scores.device}, but indptr is on {indptr.device}: move one of them")
    by = engine(scores.device)
    if by is Engine.NATIVE:  # reading offsets from a device would synchronize
        check_offsets(indptr, scores.shape[0])
    if by is Engine.TORCH:
        return segment_softmax_reference(scores, indptr)
    return _segment_softmax_apply(scores, indptr.contiguous())


def segment_softmax_reference(scores: Tensor, indptr: Tensor) -> Tensor:
    """The same as `segment_softmax` in plain torch, on any device."""
    wide = scores.to(accumulator(scores.dtype))
    rows = torch.repeat_interleave(indptr.diff(), output_size=scores.shape[0])
    by_edge = rows.reshape(-1, *[1] * (scores.dim() - 1)).expand_as(scores)
    nothing = wide.new_zeros(indptr.numel() - 1, *scores.shape[1:])
    largest = (nothing - torch.inf).scatter_reduce(0, by_edge, wide.detach(), "amax")
    powers = (wide - largest[rows]).exp()
    return (powers / nothing.index_add(0, rows, powers)[rows]).to(scores.dtype)


class _SegmentSoftmaxContext(FunctionCtx):
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]


class _SegmentSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _SegmentSoftmaxContext, scores: Tensor, indptr: Tensor) -> Tensor:
        out = softmax_rows(scores.detach().contiguous(), indptr)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(out, indptr)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: _SegmentSoftmaxContext, gradient: Tensor) -> tuple[Tensor, None]:
        result, indptr = ctx.saved_tensors
        return softmax_gradient(result.detach(), gradient.contiguous(), indptr), None


def softmax_rows(scores: Tensor, indptr: Tensor) -> Tensor:
    """Return the softmax by kernels, without a gradient."""
    if engine(scores.device) is Engine.TRITON:
        from khop.kernels.triton.segment_softmax import segment_softmax as by_triton

        return by_triton(scores, indptr)
    out = pooled(tuple(scores.shape), scores.dtype)
    _core.segment_softmax(scores, math.prod(scores.shape[1:]), indptr, out, torch.get_num_threads())
    return out


def softmax_gradient(result: Tensor, gradient: Tensor, indptr: Tensor) -> Tensor:
    """Return the gradient of the scores from that of the result, by kernels."""
    if engine(result.device) is Engine.TRITON:
        from khop.kernels.triton.segment_softmax import segment_softmax_gradient as by_triton

        return by_triton(result, gradient, indptr)
    out = pooled(tuple(result.shape), result.dtype)
    heads, threads = math.prod(result.shape[1:]), torch.get_num_threads()
    _core.segment_softmax_gradient(result, gradient, heads, indptr, out, threads)
    return out


# torch has no types for these.
_segment_softmax_apply: Callable[[Tensor, Tensor], Tensor] = _SegmentSoftmax.apply


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
    """The same as `segment_attention`, in separate steps, on any device."""
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


def segment_dot(x: Tensor, rows: Tensor, heads: int, indptr: Tensor, indices: Tensor) -> Tensor:
    """Multiply `x[indices[e]]` with `rows[i]` for each edge e of row i, head by head: (edges, heads).

    x is (sources, width), rows are (rows, width) of the same dtype: float32, float64, or bfloat16 and float16
    (the sum and the result are float32). The heads share the columns evenly, in order. Differentiable
    once, with respect to both.
    """
    check_segment(x, indptr, indices)
    wanted = (indptr.numel() - 1, x.shape[1])
    if tuple(rows.shape) != wanted or rows.dtype != x.dtype or rows.device != x.device:
        given = f"rows are {rows.dtype} {tuple(rows.shape)} on {rows.device}"
        raise ValueError(f"{given}: must be {x.dtype} {wanted} on {x.device}")
    if heads < 1 or x.shape[1] % heads:
        raise ValueError(f"heads {heads}: must divide the {x.shape[1]} columns of x")
    if not has_kernels(x, indptr):
        return segment_dot_reference(x, rows, heads, indptr, indices)
    return _segment_dot_apply(x, rows, heads, indptr.contiguous(), indices.int().contiguous())


def segment_dot_reference(x: Tensor, rows: Tensor, heads: int, indptr: Tensor, indices: Tensor) -> Tensor:
    """The same as `segment_dot` in plain torch, on any device."""
    wide, count = accumulator(x.dtype), indices.numel()
    of_edges = torch.repeat_interleave(rows.to(wide), indptr.diff(), 0, output_size=count)
    return (x.to(wide)[indices] * of_edges).view(count, heads, x.shape[1] // heads).sum(2)


class _SegmentDotContext(FunctionCtx):
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]


class _SegmentDot(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _SegmentDotContext, x: Tensor, rows: Tensor, heads: int, indptr: Tensor, indices: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, rows, indptr, indices)
        return edge_dots(x.detach(), rows.detach(), heads, Csc(indptr, indices))

    @staticmethod
    @once_differentiable
    def backward(
        ctx: _SegmentDotContext, gradient: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        x, rows, indptr, indices = ctx.saved_tensors
        edges, weights = Csc(indptr, indices), gradient.contiguous()
        of_x = of_rows = None
        if ctx.needs_input_grad[0]:
            of_x = gradient_of_sources(rows.detach(), weights, edges, x.shape[0])
        if ctx.needs_input_grad[1]:
            of_rows = weighted_sum(x.detach(), weights, edges)
        return of_x, of_rows, None, None, None


# torch has no types for these.
_segment_dot_apply: Callable[[Tensor, Tensor, int, Tensor, Tensor], Tensor] = _SegmentDot.apply
