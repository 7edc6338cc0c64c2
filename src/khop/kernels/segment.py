"""Sums, means and maxima of source rows over the in-edges of each destination.

No message is materialized, forward or backward: the gradient runs over the transposed edges, so one thread
sums each source row, in edge order. The bits depend neither on the number of threads, which is torch's
setting, nor on the machine's instruction set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

import khop._core as _core
from khop.kernels.build_csc import index_dtype
from khop.kernels.checks import INDEX_DTYPES, check_ids, check_segments
from khop.kernels.csc import Csc
from khop.kernels.memory import pooled

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def segment_sum(x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """Sum `x[indices[indptr[i]:indptr[i + 1]]]` into row i, in edge order; 0 where there is no edge.

    x is (sources, width), float32, float64 or bfloat16 (summed in float32). Differentiable once, with
    respect to x. If x needs no gradient, nothing is kept for the backward pass.
    """
    return _segment_linear(x, indptr, indices, _SUM)


def segment_mean(x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """Divide `segment_sum` by the row's number of edges; 0 where there is none."""
    return _segment_linear(x, indptr, indices, _MEAN)


def prefix_and_mean(x: Tensor, indptr: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first rows of x, one for each row of the segments, and `segment_mean`.

    Destinations of a block are the first of its sources, so both gradients are added up in one buffer.
    """
    _check(x, indptr, indices)
    rows = indptr.numel() - 1
    if not _is_native(x, indptr):
        return x[:rows], segment_mean_reference(x, indptr, indices)
    return _apply_prefix_and_mean(x, indptr.contiguous(), indices.int().contiguous())


def segment_max(x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """Take the largest value of each column; 0 where there is no edge, NaN where a value is NaN.

    Arguments and derivatives are as for `segment_sum`. The gradient goes to the source of the largest value;
    of equal ones, to the source of the first edge.
    """
    _check(x, indptr, indices)
    if not _is_native(x, indptr):
        return segment_max_reference(x, indptr, indices)
    return _apply_max(x, indptr.contiguous(), indices.int().contiguous())


def segment_sum_reference(x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """The same as `segment_sum` in plain torch, on any device."""
    rows = torch.repeat_interleave(indptr.diff())
    sums = x.new_zeros(indptr.numel() - 1, x.shape[1], dtype=_accumulator(x.dtype))
    return sums.index_add(0, rows, x.to(sums.dtype)[indices]).to(x.dtype)


def segment_mean_reference(x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """The same as `segment_mean` in plain torch, on any device."""
    sums = segment_sum_reference(x.to(_accumulator(x.dtype)), indptr, indices)
    return (sums / indptr.diff().clamp(min=1).unsqueeze(1)).to(x.dtype)


def segment_max_reference(x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """The same as `segment_max` in plain torch, on any device."""
    values = x.to(_accumulator(x.dtype))[indices]
    rows = torch.repeat_interleave(indptr.diff()).unsqueeze(1).expand_as(values)
    shape, edges = (indptr.numel() - 1, x.shape[1]), indices.numel()
    largest = values.new_full(shape, -torch.inf).scatter_reduce(0, rows, values.detach(), "amax")
    wins = (values == largest.gather(0, rows)) | values.isnan()
    candidates = torch.where(wins, torch.arange(edges, device=x.device).unsqueeze(1), edges)
    first = rows.new_full(shape, edges).scatter_reduce(0, rows, candidates, "amin")
    return torch.cat([values, values.new_zeros(1, x.shape[1])]).gather(0, first).to(x.dtype)


def transpose(indptr: Tensor, indices: Tensor, num_sources: int) -> Csc:
    """Turn the edges around: row s lists, in edge order, the rows that contain s. All int32, and valid."""
    edges = Csc(pooled((num_sources + 1,), torch.int64), pooled((indices.numel(),), torch.int32))
    _core.transpose(indptr, indices, edges.indptr, edges.indices)
    return edges


@dataclass(frozen=True)
class _Linear:
    """An operation with a gradient that is a sum over transposed edges."""

    reference: Callable[[Tensor, Tensor, Tensor], Tensor]
    forward: Callable[[Tensor, Tensor, Tensor, Tensor, int], None]
    # (gradient of the output, indptr, transposed edges, gradient of x, threads)
    backward: Callable[[Tensor, Tensor, Csc, Tensor, int], None]


def _sum_backward(gradient: Tensor, indptr: Tensor, edges: Csc, out: Tensor, threads: int) -> None:
    _core.segment_sum(gradient, edges.indptr, edges.indices, out, threads)


def _mean_backward(gradient: Tensor, indptr: Tensor, edges: Csc, out: Tensor, threads: int) -> None:
    _core.segment_mean_gradient(gradient, indptr, edges.indptr, edges.indices, out, threads)


_SUM = _Linear(segment_sum_reference, _core.segment_sum, _sum_backward)
_MEAN = _Linear(segment_mean_reference, _core.segment_mean, _mean_backward)


class _Context(FunctionCtx):
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]
    num_sources: int
    operation: _Linear


class _SegmentLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, indptr: Tensor, indices: Tensor, operation: _Linear) -> Tensor:
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(indptr, indices)
            ctx.num_sources = x.shape[0]
            ctx.operation = operation
        out = pooled((indptr.numel() - 1, x.shape[1]), x.dtype)
        operation.forward(x.detach().contiguous(), indptr, indices, out, torch.get_num_threads())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _gradient_of_sources(ctx, gradient), None, None, None


class _PrefixAndMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, indptr: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        return x[: indptr.numel() - 1], _SegmentLinear.forward(ctx, x, indptr, indices, _MEAN)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, of_prefix: Tensor, of_mean: Tensor) -> tuple[Tensor, None, None]:
        out = _gradient_of_sources(ctx, of_mean)
        out[: of_prefix.shape[0]] += of_prefix
        return out, None, None


def _gradient_of_sources(ctx: _Context, gradient: Tensor) -> Tensor:
    indptr, indices = ctx.saved_tensors
    edges = transpose(indptr, indices, ctx.num_sources)
    out = pooled((ctx.num_sources, gradient.shape[1]), gradient.dtype)
    ctx.operation.backward(gradient.contiguous(), indptr, edges, out, torch.get_num_threads())
    return out


class _SegmentMax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
        shape = (indptr.numel() - 1, x.shape[1])
        out, winners = pooled(shape, x.dtype), None
        if ctx.needs_input_grad[0]:
            winners = pooled(shape, indices.dtype)
            ctx.save_for_backward(indptr, indices, winners)
            ctx.num_sources = x.shape[0]
        _core.segment_max(x.detach().contiguous(), indptr, indices, out, winners, torch.get_num_threads())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None, None]:
        indptr, indices, winners = ctx.saved_tensors
        edges = transpose(indptr, indices, ctx.num_sources)
        out = pooled((ctx.num_sources, gradient.shape[1]), gradient.dtype)
        threads = torch.get_num_threads()
        _core.segment_max_gradient(gradient.contiguous(), edges.indptr, edges.indices, winners, out, threads)
        return out, None, None


# torch has no types for these.
_apply_linear: Callable[[Tensor, Tensor, Tensor, _Linear], Tensor] = _SegmentLinear.apply
_apply_prefix_and_mean: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = _PrefixAndMean.apply
_apply_max: Callable[[Tensor, Tensor, Tensor], Tensor] = _SegmentMax.apply


def _segment_linear(x: Tensor, indptr: Tensor, indices: Tensor, operation: _Linear) -> Tensor:
    _check(x, indptr, indices)
    if not _is_native(x, indptr):
        return operation.reference(x, indptr, indices)
    return _apply_linear(x, indptr.contiguous(), indices.int().contiguous(), operation)


def _is_native(x: Tensor, indptr: Tensor) -> bool:
    """Return true if the core can compute it: ids of sources and, transposed, of rows are 32-bit there."""
    ids = max(x.shape[0], indptr.numel() - 1)
    return x.device.type == "cpu" and index_dtype(ids) == torch.int32


def _check(x: Tensor, indptr: Tensor, indices: Tensor) -> None:
    if x.dim() != 2 or x.dtype not in DTYPES:
        raise ValueError(f"x is {x.dtype} {tuple(x.shape)}: must be (sources, width), of one of {DTYPES}")
    if x.device != indices.device:
        raise ValueError(f"x is on {x.device}, indices are on {indices.device}: move one of them")
    is_indptr = (indptr.dim(), indptr.dtype, indptr.device) == (1, torch.int64, x.device) and indptr.numel()
    is_indices = indices.dim() == 1 and indices.dtype in INDEX_DTYPES
    if not (is_indptr and is_indices and _is_native(x, indptr)):
        check_segments(indptr, indices, x.shape[0], torch.get_num_threads())
    elif indices.dtype == torch.int64:  # narrowed before the core checks every id
        check_ids(indices, x.shape[0], "source", torch.get_num_threads())


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype == torch.bfloat16 else dtype
