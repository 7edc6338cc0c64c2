"""Draws of in-edges for the frontier of a hop, all edge types in one call."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

import khop._core as _core
from khop.draw import Neighbors
from khop.kernels.choice import Engine, engine
from khop.kernels.csc import naming_damage, not_int64
from khop.kernels.draw_request import DrawRequest, Kernel


def sample_hop(requests: Sequence[DrawRequest], *, edge_ids: bool, threads: int = 1) -> list[Neighbors]:
    """Execute draws: up to `fanout` in-edges (-1: all) of every row.

    ValueError if row pointers or sources do not fit the graph; for a single draw it names the damaged row
    and its file.

    A row's picks depend only on (key, tree, stream, original id, its edges). They do not depend on other
    rows, the device, the number of threads or the processor. A row with at most `fanout` edges is returned
    whole, in row order. An edge of weight zero is never drawn, so a row may give fewer edges than both its
    degree and the fanout. Results of kernels are views of a few tensors, which are allocated and freed
    together, so that the Python cost hardly depends on the number of edge types. Kernels run without the GIL.
    """
    for request in requests:
        _check(request)
    if any(request.weigh is not None or request.times is not None for request in requests):
        return _with_values(requests, edge_ids, threads)
    # The core finds the ranges of time limits when it draws; other engines get them with the request.
    requests = [request if _is_native(request) else request.resolved() for request in requests]
    by = [_engine(request) for request in requests]
    native = [request for request, of in zip(requests, by, strict=True) if of is Engine.NATIVE]
    on_device = [request for request, of in zip(requests, by, strict=True) if of is Engine.TRITON]
    if len(native) == len(requests):
        return _by_core(requests, edge_ids, threads) if requests else []
    found = {
        Engine.NATIVE: iter(_by_core(native, edge_ids, threads) if native else []),
        Engine.TRITON: iter(_by_triton(on_device, edge_ids) if on_device else []),
    }
    return [
        _by_reference(request, edge_ids) if of is Engine.TORCH else next(found[of])
        for request, of in zip(requests, by, strict=True)
    ]


def _with_values(requests: Sequence[DrawRequest], edge_ids: bool, threads: int) -> list[Neighbors]:
    """Draw, then add weights and times: weights depend on the edges that a time limit allows."""
    requests = [request if request.weigh is None else request.resolved() for request in requests]
    plain = [replace(request, weigh=None, times=None) for request in requests]
    drawn = sample_hop(plain, edge_ids=True, threads=threads)
    valued = [request.dated(request.weighed(found)) for request, found in zip(requests, drawn, strict=True)]
    return valued if edge_ids else [replace(found, edges=None) for found in valued]


def _check(request: DrawRequest) -> None:
    """Raise ValueError unless shapes, dtypes and devices are valid for a kernel."""
    rows, indptr, fanout = request.rows, request.csc.indptr, request.fanout
    if not -1 <= fanout < 1 << 31:
        raise ValueError(f"fanout {fanout}: must be from 0 to 2^31 - 1, or -1 for all neighbors")
    count = rows.nodes.numel()
    for name, values, size in (
        ("nodes", rows.nodes, count),
        ("original_ids", rows.original_ids, indptr.numel() - 1),
        ("tree", rows.tree, count),
        ("ranges", rows.ranges, 2 * count),
    ):
        if values is None:
            continue
        if values.dtype != torch.int64 or values.shape != (size,) or values.device != indptr.device:
            raise not_int64(name, values, size, indptr.device)
    if request.sums is not None:
        request.sums.check("sums", request.csc)


def _is_native(request: DrawRequest) -> bool:
    return request.kernel is not None and engine(request.csc.indptr.device) is Engine.NATIVE


def _engine(request: DrawRequest) -> Engine:
    """Return the engine of a draw: torch for rules without a kernel and fanouts too large for Triton."""
    if request.kernel is None:
        return Engine.TORCH
    of_device = engine(request.csc.indptr.device)
    if of_device is Engine.TRITON:
        from khop.kernels.triton.draw_hop import can_draw

        return Engine.TRITON if can_draw(request) else Engine.TORCH
    return of_device


def _by_triton(requests: Sequence[DrawRequest], edge_ids: bool) -> list[Neighbors]:
    from khop.kernels.triton.draw_hop import draw_hop

    return draw_hop(requests, edge_ids)


def _by_reference(request: DrawRequest, edge_ids: bool) -> Neighbors:
    drawn = request.reference(request)
    if request.kernel is None:
        request.check_drawn(drawn)
    return drawn if edge_ids else replace(drawn, edges=None)


def _by_core(requests: Sequence[DrawRequest], edge_ids: bool, threads: int) -> list[Neighbors]:
    rows: dict[int, _core.Rows] = {}
    with naming_damage(requests[0].csc.home) if len(requests) == 1 else nullcontext():
        offsets, narrow, wide, edges, counts = _core.sample_hop(
            [_as_core(request, rows, threads) for request in requests], edge_ids, threads
        )
    nodes = _split(requests, counts, narrow, wide)
    of_edges = [None] * len(requests) if edges is None else edges.split_with_sizes(counts)
    of_rows = offsets.split_with_sizes([request.rows.nodes.numel() + 1 for request in requests])
    return [Neighbors(*parts) for parts in zip(of_rows, nodes, of_edges, strict=True)]


def _as_core(request: DrawRequest, rows: dict[int, _core.Rows], threads: int) -> _core.DrawRequest:
    """Return a draw in the core's form. `rows` holds earlier draws' rows, by their tensor of nodes."""
    of_draw, kernel = request.rows, request.kernel
    assert kernel is not None  # the core has no other draws
    # Original ids and trees depend only on the nodes: draws that share nodes share both.
    known = rows.get(id(of_draw.nodes))
    if known is None:
        known = rows[id(of_draw.nodes)] = _core.Rows(
            of_draw.nodes.contiguous(), _contiguous(of_draw.original_ids), _contiguous(of_draw.tree)
        )
    ranges, fanout = of_draw.ranges, request.fanout
    if request.limits is not None:
        ranges, fanout = request.limits.allowed(request.csc, of_draw.nodes, fanout, threads)
    sums = request.sums if kernel is Kernel.WEIGHTED else None
    return _core.DrawRequest(
        edges=request.csc.core,
        rows=known,
        kernel=kernel,
        fanout=fanout,
        replacement=request.replacement,
        key=of_draw.key.value,
        stream=of_draw.stream,
        ranges=_contiguous(ranges),
        sums=None if sums is None else sums.values.contiguous(),
        outline=None if sums is None else sums.outline,
        order=_order(request) if kernel is Kernel.SMALLEST else None,
    )


def _order(request: DrawRequest) -> _core.Order:
    """Return the keys of edges in the core's form."""
    order = request.order
    assert order is not None  # given to draws of the smallest keys
    if isinstance(order, Tensor):
        return _core.order_by_edge(order.contiguous())
    bases = order.base, order.later_base, order.period, order.later_from
    return _core.order_by_source(*bases, _contiguous(request.source_ids), _contiguous(request.has_parallel))


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _split(
    requests: Sequence[DrawRequest], counts: Sequence[int], narrow: Tensor, wide: Tensor | None
) -> Sequence[Tensor]:
    """Return the nodes of each draw from `narrow` (int32) or `wide` (int64)."""
    if wide is None:
        return narrow.split_with_sizes(counts)
    is_wide = [request.csc.indices.dtype == torch.int64 for request in requests]
    sizes: dict[bool, list[int]] = {True: [], False: []}
    for of_64, count in zip(is_wide, counts, strict=True):
        sizes[of_64].append(count)
    pieces = {
        True: iter(wide.split_with_sizes(sizes[True])),
        False: iter(narrow.split_with_sizes(sizes[False])),
    }
    return [next(pieces[of_64]) for of_64 in is_wide]
