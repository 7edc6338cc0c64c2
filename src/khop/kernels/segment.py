"""Sums, means and maxima of source rows over the in-edges of each destination, and rows at the ends of edges.

Messages are not materialized, forward or backward: the gradient iterates over the transposed edges. The
order of sums is fixed: each 512 edges of a row are added in edge order, then each 512 of these sums, and so
on. Results are bit-identical for any number of threads (torch's setting), any instruction set, and on a GPU.

On a device, a batch of static shape has more `indices` than edges: entries after `indptr[-1]` are arbitrary
and outside of all rows. They get an arbitrary row, and do not contribute to gradients. The host does not read
values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.overrides import handle_torch_function, has_torch_function_unary

import khop._core as _core
from khop.kernels.choice import Engine, engine
from khop.kernels.csc import INDEX_DTYPES, Csc, check_ids, check_segments, index_dtype
from khop.kernels.memory import pooled

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def segment_sum(x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """Sum `x[indices[indptr[i]:indptr[i + 1]]]` into row i, in a fixed order; 0 for rows without edges.

    x is (sources, width), float32, float64, or bfloat16 and float16, which are summed in float32.
    Differentiable once, with respect to x. If x does not need a gradient, nothing is saved for the backward
    pass.
    """
    if has_torch_function_unary(x):
        return _by_rows(segment_sum, x, indptr, indices)
    return _segment_linear(x, indptr, indices, _SUM)


def segment_mean(x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """Divide `segment_sum` by the row's number of edges; 0 for rows without edges."""
    if has_torch_function_unary(x):
        return _by_rows(segment_mean, x, indptr, indices)
    return _segment_linear(x, indptr, indices, _MEAN)


def prefix_and_mean(x: Tensor, indptr: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first rows of x, one for each row of the segments, and `segment_mean`.

    Destinations of a block are its first sources, so both gradients are summed in one buffer.
    """
    if has_torch_function_unary(x):
        own, mean = handle_torch_function(prefix_and_mean, (x,), x, indptr, indices)
        return own, mean
    check_segment(x, indptr, indices)
    rows = indptr.numel() - 1
    if not has_kernels(x, indptr):
        return x[:rows], segment_mean_reference(x, indptr, indices)
    return _apply_prefix_and_mean(x, indptr.contiguous(), indices.int().contiguous())


def segment_max(x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """Take the largest value of each column; 0 for rows without edges, NaN if a value is NaN.

    Arguments and derivatives are as for `segment_sum`. The gradient goes to the source of the largest value;
    for equal values, to that of the first edge.
    """
    check_segment(x, indptr, indices)
    if not has_kernels(x, indptr):
        return segment_max_reference(x, indptr, indices)
    return _apply_max(x, indptr.contiguous(), indices.int().contiguous())


def segment_sum_reference(x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """The same as `segment_sum` in plain torch, on any device."""
    rows = torch.repeat_interleave(indptr.diff(), output_size=indices.numel())
    sums = x.new_zeros(indptr.numel() - 1, x.shape[1], dtype=accumulator(x.dtype))
    return sums.index_add(0, rows, x.to(sums.dtype)[indices]).to(x.dtype)


def segment_mean_reference(x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """The same as `segment_mean` in plain torch, on any device."""
    sums = segment_sum_reference(x.to(accumulator(x.dtype)), indptr, indices)
    return (sums / indptr.diff().clamp(min=1).unsqueeze(1)).to(x.dtype)


def segment_max_reference(x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """The same as `segment_max` in plain torch, on any device."""
    values = x.to(accumulator(x.dtype))[indices]
    rows = torch.repeat_interleave(indptr.diff(), output_size=indices.numel()).unsqueeze(1).expand_as(values)
    shape, edges = (indptr.numel() - 1, x.shape[1]), indices.numel()
    largest = values.new_full(shape, -torch.inf).scatter_reduce(0, rows, values.detach(), "amax")
    wins = (values == largest.gather(0, rows)) | values.isnan()
    candidates = torch.where(wins, torch.arange(edges, device=x.device).unsqueeze(1), edges)
    first = rows.new_full(shape, edges).scatter_reduce(0, rows, candidates, "amin")
    return torch.cat([values, values.new_zeros(1, x.shape[1])]).gather(0, first).to(x.dtype)


def transpose(indptr: Tensor, indices: Tensor, num_sources: int) -> Csc:
    """Transpose the edges: row s lists, in edge order, the rows that contain s. All int32 and valid."""
    by = engine(indices.device)
    if by is Engine.TRITON:
        from khop.kernels.triton.transpose import transpose as by_triton

        return by_triton(indptr, indices, num_sources)
    if by is Engine.TORCH:
        return transpose_reference(indptr, indices, num_sources)
    edges = Csc(pooled((num_sources + 1,), torch.int64), pooled((indices.numel(),), torch.int32))
    _core.transpose(indptr, indices, edges.indptr, edges.indices)
    return edges


def transpose_reference(indptr: Tensor, indices: Tensor, num_sources: int) -> Csc:
    """The same as `transpose` in plain torch, on any device, without a host read.

    `indices` may be longer than the edges of `indptr`; the rest is not in the result.
    """
    positions = torch.arange(indices.numel(), device=indices.device)
    rows = torch.searchsorted(indptr[1:], positions, right=True, out_int32=True)
    sources = torch.where(positions < indptr[-1], indices, num_sources)
    ordered, order = sources.sort(stable=True)
    starts = torch.arange(num_sources + 1, dtype=torch.int32, device=indices.device)
    return Csc(torch.searchsorted(ordered, starts), rows[order])


@dataclass(frozen=True)
class _Linear:
    """An operation with a gradient that is a sum over transposed edges."""

    reference: Callable[[Tensor, Tensor, Tensor], Tensor]
    forward: Callable[[Tensor, Csc], Tensor]
    backward: Callable[[Tensor, Tensor, Csc], Tensor]  # gradient of the output, indptr, transposed edges


def sum_rows(x: Tensor, edges: Csc) -> Tensor:
    """Return the sums of rows by kernels, without a gradient."""
    if engine(x.device) is Engine.TRITON:
        from khop.kernels.triton.segment import segment_sum as by_triton

        return by_triton(x, edges)
    out = pooled((edges.num_rows, x.shape[1]), x.dtype)
    _core.segment_sum(x.contiguous(), edges.indptr, edges.indices, out, torch.get_num_threads())
    return out


def _mean(x: Tensor, edges: Csc) -> Tensor:
    if engine(x.device) is Engine.TRITON:
        from khop.kernels.triton.segment import segment_mean as by_triton

        return by_triton(x, edges)
    out = pooled((edges.num_rows, x.shape[1]), x.dtype)
    _core.segment_mean(x.contiguous(), edges.indptr, edges.indices, out, torch.get_num_threads())
    return out


def _sum_gradient(gradient: Tensor, indptr: Tensor, transposed: Csc) -> Tensor:
    return sum_rows(gradient, transposed)


def _mean_gradient(gradient: Tensor, indptr: Tensor, transposed: Csc) -> Tensor:
    if engine(gradient.device) is Engine.TRITON:
        from khop.kernels.triton.segment import segment_mean_gradient as by_triton

        return by_triton(gradient, indptr, transposed)
    out = pooled((transposed.num_rows, gradient.shape[1]), gradient.dtype)
    arguments = indptr, transposed.indptr, transposed.indices, out, torch.get_num_threads()
    _core.segment_mean_gradient(gradient.contiguous(), *arguments)
    return out


def _max(x: Tensor, edges: Csc, with_winners: bool) -> tuple[Tensor, Tensor | None]:
    """Return the largest values, and on request the source of each."""
    if engine(x.device) is Engine.TRITON:
        from khop.kernels.triton.segment_max import segment_max as by_triton

        return by_triton(x, edges, with_winners=with_winners)
    shape = edges.num_rows, x.shape[1]
    out, winners = pooled(shape, x.dtype), pooled(shape, torch.int32) if with_winners else None
    threads = torch.get_num_threads()
    _core.segment_max(x.contiguous(), edges.indptr, edges.indices, out, winners, threads)
    return out, winners


def _max_gradient(gradient: Tensor, winners: Tensor, transposed: Csc) -> Tensor:
    if engine(gradient.device) is Engine.TRITON:
        from khop.kernels.triton.segment_max import segment_max_gradient as by_triton

        return by_triton(gradient, winners, transposed)
    out = pooled((transposed.num_rows, gradient.shape[1]), gradient.dtype)
    arguments = transposed.indptr, transposed.indices, winners, out, torch.get_num_threads()
    _core.segment_max_gradient(gradient.contiguous(), *arguments)
    return out


_SUM = _Linear(segment_sum_reference, sum_rows, _sum_gradient)
_MEAN = _Linear(segment_mean_reference, _mean, _mean_gradient)


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
        return operation.forward(x.detach(), Csc(indptr, indices))

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
    return ctx.operation.backward(gradient, indptr, transpose(indptr, indices, ctx.num_sources))


class _SegmentMax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
        out, winners = _max(x.detach(), Csc(indptr, indices), ctx.needs_input_grad[0])
        if winners is not None:
            ctx.save_for_backward(indptr, indices, winners)
            ctx.num_sources = x.shape[0]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None, None]:
        indptr, indices, winners = ctx.saved_tensors
        return _max_gradient(gradient, winners, transpose(indptr, indices, ctx.num_sources)), None, None


# torch has no types for these.
_apply_linear: Callable[[Tensor, Tensor, Tensor, _Linear], Tensor] = _SegmentLinear.apply
_apply_prefix_and_mean: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = _PrefixAndMean.apply
_apply_max: Callable[[Tensor, Tensor, Tensor], Tensor] = _SegmentMax.apply


def _by_rows(operation: Callable[..., Tensor], x: Tensor, *operands: Tensor) -> Tensor:
    """Dispatch an operation to lazy rows: see `khop.kernels.lazy_rows`."""
    result: Tensor = handle_torch_function(operation, (x,), x, *operands)
    return result


def _segment_linear(x: Tensor, indptr: Tensor, indices: Tensor, operation: _Linear) -> Tensor:
    check_segment(x, indptr, indices)
    if not has_kernels(x, indptr):
        return operation.reference(x, indptr, indices)
    return _apply_linear(x, indptr.contiguous(), indices.int().contiguous(), operation)


def has_kernels(x: Tensor, indptr: Tensor) -> bool:
    """Return True if kernels can compute it: ids of sources and, transposed, of rows must be 32-bit."""
    ids = max(x.shape[0], indptr.numel() - 1)
    return engine(x.device) is not Engine.TORCH and index_dtype(ids) == torch.int32


def check_segment(x: Tensor, indptr: Tensor, indices: Tensor) -> None:
    """Raise ValueError for operands that do not fit; contents are checked only on the CPU.

    Reading them from a device would synchronize. The native core checks int32 ids itself.
    """
    if x.dim() != 2 or x.dtype not in DTYPES:
        raise ValueError(f"x is {x.dtype} {tuple(x.shape)}: must be (sources, width), of one of {DTYPES}")
    if x.device != indices.device:
        raise ValueError(f"x is on {x.device}, but indices are on {indices.device}: move one of them")
    is_indptr = (indptr.dim(), indptr.dtype, indptr.device) == (1, torch.int64, x.device) and indptr.numel()
    is_indices = indices.dim() == 1 and indices.dtype in INDEX_DTYPES
    if is_indptr and is_indices and engine(x.device) is not Engine.NATIVE:
        return
    if not (is_indptr and is_indices and has_kernels(x, indptr)):
        check_segments(indptr, indices, x.shape[0], torch.get_num_threads())
    elif indices.dtype == torch.int64:  # narrowed before the core checks every id
        check_ids(indices, x.shape[0], "source", torch.get_num_threads())


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which numbers of a dtype are summed."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def edge_rows(indptr: Tensor, num_edges: int) -> Tensor:
    """Return the row of each edge, int32 (num_edges); the number of rows for entries after the last edge.

    `num_edges` is the number of indices. On the CPU, `indptr` must end with it.
    """
    if engine(indptr.device) is not Engine.NATIVE:
        return searched_rows(indptr, num_edges)
    # A search per edge takes ten times as long as a pass over the rows.
    rows = torch.arange(indptr.numel() - 1, dtype=torch.int32, device=indptr.device)
    return torch.repeat_interleave(rows, indptr.diff(), output_size=num_edges)


def searched_rows(indptr: Tensor, num_edges: int) -> Tensor:
    """Return `edge_rows` by a search per edge, on any device with entries after the last edge."""
    places = torch.arange(num_edges, device=indptr.device)
    return torch.searchsorted(indptr[1:], places, right=True, out_int32=True)


def edges_of_sources(edges: Csc, num_sources: int) -> Csc:
    """Return the positions of each source's edges, in edge order; arbitrary after the last edge."""
    # Each edge as a separate row: the transpose lists the positions of each source's edges.
    positions = torch.arange(edges.num_edges + 1, device=edges.indices.device).clamp_(max=edges.indptr[-1])
    return transpose(positions, edges.indices, num_sources)


def rows_of_destinations(rows: Tensor, indptr: Tensor, num_edges: int) -> Tensor:
    """Repeat each destination's row for its edges: (num_edges, width); an arbitrary row after the last edge.

    Rows are (destinations, width). Differentiable once.
    """
    if engine(rows.device) is Engine.NATIVE:
        return torch.repeat_interleave(rows, indptr.diff(), 0, output_size=num_edges)
    if not has_kernels(rows, indptr):
        return rows.index_select(0, _clamped(edge_rows(indptr, num_edges), rows))
    return _apply_destinations(rows, indptr.contiguous(), num_edges)


def rows_of_sources(x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """Return the row of each edge's source: (edges, width); an arbitrary row after the last edge.

    x is (sources, width). Differentiable once.
    """
    if engine(x.device) is Engine.NATIVE:
        return x.index_select(0, indices)
    if not has_kernels(x, indptr):
        return x.index_select(0, _clamped(indices, x))
    return _apply_sources(x, indptr.contiguous(), indices.int().contiguous())


def _clamped(numbers: Tensor, rows: Tensor) -> Tensor:
    """Clamp row numbers to the rows of `rows`: entries after the last edge are arbitrary."""
    return numbers.clamp(0, max(rows.shape[0] - 1, 0))


class _EdgeRowsContext(FunctionCtx):
    saved_tensors: tuple[Tensor, ...]
    num_edges: int
    num_sources: int


class _RowsOfDestinations(torch.autograd.Function):
    """The gradient of a row is summed over its edges in a fixed order, unlike that of `index_select`."""

    @staticmethod
    def forward(ctx: _EdgeRowsContext, rows: Tensor, indptr: Tensor, num_edges: int) -> Tensor:
        ctx.save_for_backward(indptr)
        ctx.num_edges = num_edges
        return rows.index_select(0, _clamped(edge_rows(indptr, num_edges), rows))

    @staticmethod
    @once_differentiable
    def backward(ctx: _EdgeRowsContext, gradient: Tensor) -> tuple[Tensor, None, None]:
        (indptr,) = ctx.saved_tensors
        places = torch.arange(ctx.num_edges, dtype=torch.int32, device=indptr.device)
        return sum_rows(gradient.contiguous(), Csc(indptr, places)), None, None


class _RowsOfSources(torch.autograd.Function):
    """The gradient of a source is summed over its edges, as for destinations."""

    @staticmethod
    def forward(ctx: _EdgeRowsContext, x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
        ctx.save_for_backward(indptr, indices)
        ctx.num_sources = x.shape[0]
        return x.index_select(0, _clamped(indices, x))

    @staticmethod
    @once_differentiable
    def backward(ctx: _EdgeRowsContext, gradient: Tensor) -> tuple[Tensor, None, None]:
        indptr, indices = ctx.saved_tensors
        edges = edges_of_sources(Csc(indptr, indices), ctx.num_sources)
        return sum_rows(gradient.contiguous(), edges), None, None


# torch has no types for these.
_apply_destinations: Callable[[Tensor, Tensor, int], Tensor] = _RowsOfDestinations.apply
_apply_sources: Callable[[Tensor, Tensor, Tensor], Tensor] = _RowsOfSources.apply
