"""Softmax over the in-edges of each destination, for attention weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

import khop._core as _core
from khop.kernels.checks import check_offsets
from khop.kernels.choice import Engine, engine
from khop.kernels.memory import pooled
from khop.kernels.segment import DTYPES, accumulator


def segment_softmax(scores: Tensor, indptr: Tensor) -> Tensor:
    """Normalize every row's scores to sum 1: exp(score) over the sum of exp over the row's edges.

    scores are (edges) or (edges, heads), each head separately, in CSC order: row i has edges
    `indptr[i]:indptr[i + 1]`. float32, float64, or bfloat16 and float16, which are computed in float32.
    Differentiable once. The bits depend neither on the number of threads, which is torch's setting, nor on
    the machine's instruction set.
    """
    if scores.dim() not in (1, 2) or scores.dtype not in DTYPES:
        raise ValueError(
            f"scores are {scores.dtype} {tuple(scores.shape)}: must be (edges) or (edges, heads), "
            f"of one of {DTYPES}"
        )
    if scores.device != indptr.device:
        raise ValueError(f"scores are on {scores.device}, indptr is on {indptr.device}: move one of them")
    by = engine(scores.device)
    if by is Engine.NATIVE:  # reading offsets from a device would wait for all queued work
        check_offsets(indptr, scores.shape[0])
    if by is Engine.TORCH:
        return segment_softmax_reference(scores, indptr)
    return _apply(scores, indptr.contiguous())


def segment_softmax_reference(scores: Tensor, indptr: Tensor) -> Tensor:
    """The same as `segment_softmax` in plain torch, on any device."""
    wide = scores.to(accumulator(scores.dtype))
    rows = torch.repeat_interleave(indptr.diff(), output_size=scores.shape[0])
    by_edge = rows.reshape(-1, *[1] * (scores.dim() - 1)).expand_as(scores)
    nothing = wide.new_zeros(indptr.numel() - 1, *scores.shape[1:])
    largest = (nothing - torch.inf).scatter_reduce(0, by_edge, wide.detach(), "amax")
    powers = (wide - largest[rows]).exp()
    return (powers / nothing.index_add(0, rows, powers)[rows]).to(scores.dtype)


class _Context(FunctionCtx):
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]


class _SegmentSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, scores: Tensor, indptr: Tensor) -> Tensor:
        out = softmax_rows(scores.detach().contiguous(), indptr)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(out, indptr)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None]:
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
_apply: Callable[[Tensor, Tensor], Tensor] = _SegmentSoftmax.apply
