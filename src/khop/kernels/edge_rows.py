"""The ends of edges: numbers of rows, and rows of a tensor repeated for each edge.

On a device, a batch of static shape has more `indices` than edges: entries behind `indptr[-1]` hold any
number and are in no row. Here they get some row, and add nothing to a gradient. Nothing is read on the host.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from khop.kernels.choice import Engine, engine
from khop.kernels.csc import Csc
from khop.kernels.segment import has_kernels, sum_rows, transpose


def edge_rows(indptr: Tensor, num_edges: int) -> Tensor:
    """Return the row of each edge, int32 (num_edges); the number of rows for entries behind the last edge.

    `num_edges` is the number of indices. On the CPU, `indptr` must end with it.
    """
    if engine(indptr.device) is not Engine.NATIVE:
        return searched_rows(indptr, num_edges)
    # A search per edge costs ten times as much as a pass over the rows.
    rows = torch.arange(indptr.numel() - 1, dtype=torch.int32, device=indptr.device)
    return torch.repeat_interleave(rows, indptr.diff(), output_size=num_edges)


def searched_rows(indptr: Tensor, num_edges: int) -> Tensor:
    """Return `edge_rows` by a search per edge, on any device with entries behind the last edge."""
    places = torch.arange(num_edges, device=indptr.device)
    return torch.searchsorted(indptr[1:], places, right=True, out_int32=True)


def edges_of_sources(edges: Csc, num_sources: int) -> Csc:
    """Return the positions of each source's edges, in edge order; any number behind the last edge."""
    # Each edge as a row of its own: turned around, it lists the positions of each source's edges.
    positions = torch.arange(edges.num_edges + 1, device=edges.indices.device).clamp_(max=edges.indptr[-1])
    return transpose(positions, edges.indices, num_sources)


def rows_of_destinations(rows: Tensor, indptr: Tensor, num_edges: int) -> Tensor:
    """Repeat each destination's row for its edges: (num_edges, width); any row behind the last edge.

    Rows are (destinations, width). Differentiable once.
    """
    if engine(rows.device) is Engine.NATIVE:
        return torch.repeat_interleave(rows, indptr.diff(), 0, output_size=num_edges)
    if not has_kernels(rows, indptr):
        return rows.index_select(0, _clamped(edge_rows(indptr, num_edges), rows))
    return _apply_destinations(rows, indptr.contiguous(), num_edges)


def rows_of_sources(x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """Return the row of each edge's source: (edges, width); any row behind the last edge.

    x is (sources, width). Differentiable once.
    """
    if engine(x.device) is Engine.NATIVE:
        return x.index_select(0, indices)
    if not has_kernels(x, indptr):
        return x.index_select(0, _clamped(indices, x))
    return _apply_sources(x, indptr.contiguous(), indices.int().contiguous())


def _clamped(numbers: Tensor, rows: Tensor) -> Tensor:
    """Clamp row numbers to the rows of `rows`: entries behind the last edge may hold any number."""
    return numbers.clamp(0, max(rows.shape[0] - 1, 0))


class _Context(FunctionCtx):
    saved_tensors: tuple[Tensor, ...]
    num_edges: int
    num_sources: int


class _RowsOfDestinations(torch.autograd.Function):
    """The gradient of a row is summed over its edges in their order; `index_select` may take any order."""

    @staticmethod
    def forward(ctx: _Context, rows: Tensor, indptr: Tensor, num_edges: int) -> Tensor:
        ctx.save_for_backward(indptr)
        ctx.num_edges = num_edges
        return rows.index_select(0, _clamped(edge_rows(indptr, num_edges), rows))

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None, None]:
        (indptr,) = ctx.saved_tensors
        places = torch.arange(ctx.num_edges, dtype=torch.int32, device=indptr.device)
        return sum_rows(gradient.contiguous(), Csc(indptr, places)), None, None


class _RowsOfSources(torch.autograd.Function):
    """The gradient of a source is summed over its edges, as for destinations."""

    @staticmethod
    def forward(ctx: _Context, x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
        ctx.save_for_backward(indptr, indices)
        ctx.num_sources = x.shape[0]
        return x.index_select(0, _clamped(indices, x))

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None, None]:
        indptr, indices = ctx.saved_tensors
        edges = edges_of_sources(Csc(indptr, indices), ctx.num_sources)
        return sum_rows(gradient.contiguous(), edges), None, None


# torch has no types for these.
_apply_destinations: Callable[[Tensor, Tensor, int], Tensor] = _RowsOfDestinations.apply
_apply_sources: Callable[[Tensor, Tensor, Tensor], Tensor] = _RowsOfSources.apply
