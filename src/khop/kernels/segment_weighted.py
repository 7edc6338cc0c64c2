"""Weighted sums of source rows over the in-edges of each destination, by head or by basis.

Messages are not materialized, forward or backward. The order of sums is that of `khop.kernels.segment`, so
results are bit-identical for any number of threads (torch's setting), any instruction set, and on a GPU. Only
gradients of `segment_mixture` differ on a GPU, by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.overrides import handle_torch_function, has_torch_function_unary

import khop._core as _core
from khop.kernels.choice import Engine, engine
from khop.kernels.csc import Csc
from khop.kernels.memory import pooled
from khop.kernels.segment import accumulator, check_segment, edge_rows, edges_of_sources, has_kernels


def segment_weighted_sum(x: Tensor, weights: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """Sum `weights[e] * x[indices[e]]` over the edges e of each row, in a fixed order; 0 without edges.

    x is (sources, width), float32, float64, or bfloat16 and float16, which are summed in float32. weights are
    (edges), or (edges, heads): the heads share the columns of x evenly, in order. Differentiable once, with
    respect to x and weights; gradients are computed only for operands that require them.
    """
    check_segment(x, indptr, indices)
    if weights.dim() not in (1, 2) or weights.shape[0] != indices.numel() or weights.device != x.device:
        given = f"weights are {tuple(weights.shape)} on {weights.device}"
        raise ValueError(f"{given}: must be ({indices.numel()}) or ({indices.numel()}, heads) on {x.device}")
    by_head = weights.reshape(indices.numel(), weights.shape[1] if weights.dim() == 2 else 1)
    if not by_head.shape[1] or x.shape[1] % by_head.shape[1]:
        raise ValueError(f"weights of {by_head.shape[1]} heads: must divide the {x.shape[1]} columns of x")
    by_head = by_head.to(accumulator(x.dtype))
    if has_torch_function_unary(x):
        result: Tensor = handle_torch_function(segment_weighted_sum, (x,), x, by_head, indptr, indices)
        return result
    if not has_kernels(x, indptr):
        return segment_weighted_sum_reference(x, by_head, indptr, indices)
    return _apply(x, by_head, indptr.contiguous(), indices.int().contiguous())


def segment_weighted_sum_reference(x: Tensor, weights: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """The same as `segment_weighted_sum` in plain torch, on any device."""
    rows = torch.repeat_interleave(indptr.diff(), output_size=indices.numel())
    wide = x.to(accumulator(x.dtype))[indices]
    by_head = weights.to(wide.dtype).view(indices.numel(), weights.shape[1] if weights.dim() == 2 else 1)
    by_column = by_head.repeat_interleave(x.shape[1] // by_head.shape[1], 1)
    sums = wide.new_zeros(indptr.numel() - 1, x.shape[1])
    return sums.index_add(0, rows, wide * by_column).to(x.dtype)


class _Context(FunctionCtx):
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]


class _SegmentWeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, weights: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(x, weights, indptr, indices)
        return weighted_sum(x.detach(), weights.detach(), Csc(indptr, indices))

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weights, indptr, indices = ctx.saved_tensors
        edges, of_x, of_weights = Csc(indptr, indices), None, None
        if ctx.needs_input_grad[0]:
            of_x = gradient_of_sources(gradient, weights.detach(), edges, x.shape[0])
        if ctx.needs_input_grad[1]:
            of_weights = edge_dots(x.detach(), gradient, weights.shape[1], edges)
        return of_x, of_weights, None, None


def gradient_of_sources(gradient: Tensor, weights: Tensor, edges: Csc, num_sources: int) -> Tensor:
    """Sum weights (edges, heads) times rows over the transposed edges, in the fixed order of sums."""
    turned, order = turned_edges(edges, num_sources)
    return weighted_sum(gradient, weights.index_select(0, order), turned)


def turned_edges(edges: Csc, num_sources: int) -> tuple[Csc, Tensor]:
    """Transpose the edges: each source's rows in edge order, and the position of each of these edges."""
    # Entries after the last edge, which a device may have, are outside of all rows; their positions are
    # arbitrary.
    turned = edges_of_sources(edges, num_sources)
    order = turned.indices.long().clamp_(0, max(edges.num_edges - 1, 0))
    rows = edge_rows(edges.indptr, edges.num_edges)
    return Csc(turned.indptr, rows.index_select(0, order)), order


def weighted_sum(x: Tensor, weights: Tensor, edges: Csc) -> Tensor:
    """Return sums of weights (edges, heads) times rows of x over each row's edges, by kernels."""
    if engine(x.device) is Engine.TRITON:
        from khop.kernels.triton.segment_weighted import segment_weighted_sum as by_triton

        return by_triton(x, weights, edges)
    out = pooled((edges.num_rows, x.shape[1]), x.dtype)
    operands = (x.contiguous(), weights.contiguous(), weights.shape[1], edges.indptr, edges.indices)
    _core.segment_weighted_sum(*operands, out, torch.get_num_threads())
    return out


def edge_dots(x: Tensor, gradient: Tensor, heads: int, edges: Csc) -> Tensor:
    """Return the dot products of the rows at both ends of each edge: (edges, heads)."""
    if engine(x.device) is Engine.TRITON:
        from khop.kernels.triton.segment_weighted import segment_weighted_sum_gradient as by_triton

        return by_triton(x, gradient, heads, edges)
    out = pooled((edges.num_edges, heads), accumulator(x.dtype))
    operands = (x.contiguous(), gradient.contiguous(), heads, edges.indptr, edges.indices)
    _core.segment_weighted_sum_gradient(*operands, out, torch.get_num_threads())
    return out


# torch has no types for these.
_apply: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = _SegmentWeightedSum.apply


_DTYPES = (torch.float32, torch.float64)


def segment_mixture(x: Tensor, weights: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """Sum `weights[e, b] * x[indices[e]]` over the edges e of each row into (rows, bases * width).

    The columns of a row are those of basis 0, then those of basis 1, and so on; 0 for rows without edges. x
    is (sources, width), weights are (edges, bases); bfloat16 and float16 are summed in float32.
    Differentiable once, with respect to x and weights. Gradients on a GPU equal those on the CPU up to
    rounding: for x, the core adds the bases edge by edge, and a GPU adds the sums of each basis.
    """
    check_segment(x, indptr, indices)
    if weights.dim() != 2 or weights.shape[0] != indices.numel() or not weights.shape[1]:
        raise ValueError(f"weights are {tuple(weights.shape)}: must be ({indices.numel()}, bases)")
    weights = weights.to(accumulator(x.dtype))
    if has_torch_function_unary(x):
        result: Tensor = handle_torch_function(segment_mixture, (x,), x, weights, indptr, indices)
        return result
    if engine(x.device) is Engine.TRITON:  # same order of sums; gradients are those of each basis, added
        columns = weights.unbind(1)
        return torch.cat([segment_weighted_sum(x, one, indptr, indices) for one in columns], dim=1)
    if x.dtype != weights.dtype:  # bfloat16 and float16
        return segment_mixture(x.to(weights.dtype), weights, indptr, indices).to(x.dtype)
    is_native = engine(x.device) is Engine.NATIVE and x.dtype in _DTYPES and x.shape[1] > 0
    if not (is_native and has_kernels(x, indptr)):
        return segment_mixture_reference(x, weights, indptr, indices)
    return _segment_mixture_apply(x, weights, indptr.contiguous(), indices.int().contiguous())


def segment_mixture_reference(x: Tensor, weights: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """The same as `segment_mixture` in plain torch, on any device."""
    rows = torch.repeat_interleave(indptr.diff(), output_size=indices.numel())
    messages = weights.unsqueeze(2) * x[indices].unsqueeze(1)
    sums = messages.new_zeros(indptr.numel() - 1, *messages.shape[1:])
    return sums.index_add(0, rows, messages).flatten(1)


def merge_edges(
    edges: Sequence[Csc], firsts: Sequence[int], num_rows: int, num_sources: int
) -> tuple[Csc, Tensor]:
    """Join the edges of several types by destination, and return the number of each edge's type, int32.

    Sources of type i are rows `firsts[i]`, `firsts[i]` + 1, ... of all `num_sources`. Edges of a row are in
    the order of types, then in their previous order. int32 indices, on the CPU.
    """
    count = sum(each.num_edges for each in edges)
    joined = Csc(
        torch.empty(num_rows + 1, dtype=torch.int64), torch.empty(count, dtype=torch.int32), num_sources
    )
    relations = torch.empty(count, dtype=torch.int32)
    indptrs = [each.indptr.contiguous() for each in edges]
    indices = [each.indices.int().contiguous() for each in edges]
    threads = torch.get_num_threads()
    _core.merge_edges(
        indptrs, indices, list(firsts), num_sources, joined.indptr, joined.indices, relations, threads
    )
    return joined, relations


class _SegmentMixtureContext(FunctionCtx):
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]


class _SegmentMixture(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _SegmentMixtureContext, x: Tensor, weights: Tensor, indptr: Tensor, indices: Tensor
    ) -> Tensor:
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(x, weights, indptr, indices)
        out = pooled((indptr.numel() - 1, weights.shape[1] * x.shape[1]), x.dtype)
        operands = (x.detach().contiguous(), weights.detach().contiguous(), indptr, indices)
        _core.segment_mixture(*operands, out, torch.get_num_threads())
        return out

    @staticmethod
    @once_differentiable
    def backward(
        ctx: _SegmentMixtureContext, gradient: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weights, indptr, indices = (each.detach().contiguous() for each in ctx.saved_tensors)
        gradient, threads = gradient.contiguous(), torch.get_num_threads()
        of_x, of_weights = None, None
        if ctx.needs_input_grad[0]:
            turned, order = turned_edges(Csc(indptr, indices), x.shape[0])
            of_x = pooled(tuple(x.shape), x.dtype)
            edges = (turned.indptr, turned.indices, order.int())
            _core.segment_mixture_sources(gradient, weights, *edges, of_x, threads)
        if ctx.needs_input_grad[1]:
            of_weights = pooled(tuple(weights.shape), weights.dtype)
            _core.segment_mixture_weights(x, gradient, indptr, indices, of_weights, threads)
        return of_x, of_weights, None, None


_segment_mixture_apply: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = (
    _SegmentMixture.apply
)  # torch has no types for it
