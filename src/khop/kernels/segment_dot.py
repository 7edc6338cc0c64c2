"""Dot products of the rows at both ends of each edge, by heads, for attention scores.

No row per edge is materialized, forward or backward. The bits depend neither on the number of threads, which
is torch's setting, nor on the machine's instruction set.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from khop.kernels.csc import Csc
from khop.kernels.segment import accumulator, check_segment, has_kernels
from khop.kernels.segment_weighted import edge_dots, gradient_of_sources, weighted_sum


def segment_dot(x: Tensor, rows: Tensor, heads: int, indptr: Tensor, indices: Tensor) -> Tensor:
    """Multiply `x[indices[e]]` with `rows[i]` for each edge e of row i, head by head: (edges, heads).

    x is (sources, width), rows are (rows, width) of the same dtype: float32, float64, or bfloat16 and float16
    (summed in float32, which the result is). The heads share the columns evenly, in order. Differentiable
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
    return _apply(x, rows, heads, indptr.contiguous(), indices.int().contiguous())


def segment_dot_reference(x: Tensor, rows: Tensor, heads: int, indptr: Tensor, indices: Tensor) -> Tensor:
    """The same as `segment_dot` in plain torch, on any device."""
    wide, count = accumulator(x.dtype), indices.numel()
    of_edges = torch.repeat_interleave(rows.to(wide), indptr.diff(), 0, output_size=count)
    return (x.to(wide)[indices] * of_edges).view(count, heads, x.shape[1] // heads).sum(2)


class _Context(FunctionCtx):
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]


class _SegmentDot(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context, x: Tensor, rows: Tensor, heads: int, indptr: Tensor, indices: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, rows, indptr, indices)
        return edge_dots(x.detach(), rows.detach(), heads, Csc(indptr, indices))

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        x, rows, indptr, indices = ctx.saved_tensors
        edges, weights = Csc(indptr, indices), gradient.contiguous()
        of_x = of_rows = None
        if ctx.needs_input_grad[0]:
            of_x = gradient_of_sources(rows.detach(), weights, edges, x.shape[0])
        if ctx.needs_input_grad[1]:
            of_rows = weighted_sum(x.detach(), weights, edges)
        return of_x, of_rows, None, None, None


# torch has no types for these.
_apply: Callable[[Tensor, Tensor, int, Tensor, Tensor], Tensor] = _SegmentDot.apply
