"""Draws of a hop on the device as exact arrays: all edge types with one synchronization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from khop.draw import Neighbors
from khop.kernels.draw_request import DrawRequest, Kernel
from khop.kernels.philox import SourceNumbers
from khop.kernels.triton.all_neighbors import AllNeighbors, expand_all, offsets_of_all
from khop.kernels.triton.launch import Variant, launch
from khop.kernels.triton.rows import DeviceRows, Slots, rows_of
from khop.kernels.triton.sample_smallest import EdgeOrder, SourceOrder, sample_smallest
from khop.kernels.triton.sample_uniform import most_picks as most_uniform
from khop.kernels.triton.sample_uniform import sample_uniform
from khop.kernels.triton.sample_weighted import most_picks as most_weighted
from khop.kernels.triton.sample_weighted import sample_weighted

_SLOTS = 512  # per program


@triton.jit(do_not_specialize=["slots", "per_row"])
def _close_gaps(
    ids: tl.tensor,
    edges: tl.tensor,
    counts: tl.tensor,
    offsets: tl.tensor,
    nodes_out: tl.tensor,
    edges_out: tl.tensor,
    slots: tl.tensor,
    per_row: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = at // per_row
    place = at % per_row
    inside = at < slots
    there = inside & (place < tl.load(counts + row, mask=inside, other=0))
    to = tl.load(offsets + row, mask=there, other=0) + place
    tl.store(nodes_out + to, tl.load(ids + at, mask=there, other=0), mask=there)
    if edges is not None:
        tl.store(edges_out + to, tl.load(edges + at, mask=there, other=0), mask=there)


@dataclass(frozen=True)
class _Started:
    """A draw whose kernels are launched, and the counts of its rows."""

    request: DrawRequest
    rows: DeviceRows
    offsets: Tensor  # int64 (rows + 1)
    slots: Slots | None  # None: all neighbors
    is_outside: Tensor  # bool (), some node is not a row of the graph

    def finish(self, edges: int, edge_ids: bool) -> Neighbors:
        """Return the drawn neighbors, with `edges` as their number."""
        csc, slots, device = self.request.csc, self.slots, self.offsets.device
        has_edges = edge_ids or slots is None
        nodes = torch.empty(edges, dtype=csc.indices.dtype, device=device)
        positions = torch.empty(edges, dtype=torch.int64, device=device) if has_edges else None
        if slots is None:
            expand_all(csc, self.rows, AllNeighbors(self.offsets, nodes, positions))
            return self._positive(Neighbors(self.offsets, nodes, positions), edge_ids)
        count = slots.ids.numel()
        launch(
            *(_close_gaps, triton.cdiv(count, _SLOTS), nodes, slots.ids, slots.edges, slots.counts),
            *(self.offsets, nodes, positions, count, self.request.fanout),
            BLOCK=_SLOTS,
        )
        return Neighbors(self.offsets, nodes, positions)

    def _positive(self, found: Neighbors, edge_ids: bool) -> Neighbors:
        """Remove edges of weight zero, which a weighted rule never draws."""
        edges, request = found.edges, self.request
        if request.kernel is Kernel.WEIGHTED and edges is not None and edges.numel():
            assert request.sums is not None
            sums, rows = request.sums.values, request.rows.nodes
            row = torch.repeat_interleave(rows, found.offsets.diff(), output_size=edges.numel())
            before = torch.where(edges == request.csc.indptr[row], 0, sums[(edges - 1).clamp(min=0)])
            weighs = sums[edges] > before
            ends = torch.cat([found.offsets.new_zeros(1), weighs.cumsum(0)])
            found = Neighbors(ends[found.offsets], found.nodes[weighs], edges[weighs])
        return found if edge_ids else Neighbors(found.offsets, found.nodes)


def can_draw(request: DrawRequest) -> bool:
    """Return True if a kernel can draw the request: its rule has one and the fanout fits.

    Draws in the order of sources require rows with distinct sources.
    """
    most = {Kernel.UNIFORM: most_uniform, Kernel.WEIGHTED: most_weighted}
    kernel = request.kernel
    if kernel is Kernel.SMALLEST:
        return request.has_parallel is None
    return kernel in most and request.fanout <= most[kernel](request.replacement)


def draw_hop(requests: Sequence[DrawRequest], edge_ids: bool) -> list[Neighbors]:
    """Execute draws for which `can_draw` is True, as `sample_hop` does.

    All kernels are launched before the host reads the number of edges of each draw, in one read. A weighted
    draw of all neighbors also reads its number of edges of positive weight.
    """
    started = [_start(request, edge_ids) for request in requests]
    facts = torch.stack([fact for each in started for fact in (each.offsets[-1], each.is_outside.long())])
    numbers = facts.view(-1, 2).tolist()
    for (_, is_outside), request in zip(numbers, requests, strict=True):
        if is_outside:
            request.rows.bounds(request.csc)  # raises the error, which names the node
    return [each.finish(edges, edge_ids) for (edges, _), each in zip(numbers, started, strict=True)]


def order_of(request: DrawRequest) -> SourceOrder | EdgeOrder:
    """Return the order of a request's edges, with the numbers of its key."""
    order, ids = request.order, request.source_ids
    if isinstance(order, SourceNumbers):
        return SourceOrder(request.rows.stream, None if ids is None else ids.contiguous(), order)
    assert order is not None  # draws of the smallest keys have it
    return EdgeOrder(order.contiguous())


def _start(request: DrawRequest, edge_ids: bool) -> _Started:
    csc, nodes, fanout = request.csc, request.rows.nodes, request.fanout
    rows = rows_of(request.rows)
    offsets = torch.zeros(nodes.numel() + 1, dtype=torch.int64, device=nodes.device)
    is_outside = ((nodes < 0) | (nodes >= csc.num_rows)).any()
    if fanout == -1:
        offsets_of_all(csc, rows, offsets)
        return _Started(request, rows, offsets, None, is_outside)
    slots = Slots.empty(rows.capacity, fanout, csc.indices.dtype, nodes)
    if edge_ids:
        edges = torch.empty(slots.ids.numel(), dtype=torch.int64, device=nodes.device)
        slots = Slots(slots.ids, slots.counts, edges)
    if fanout == 0:
        slots.counts.zero_()
    elif request.kernel is Kernel.UNIFORM:
        sample_uniform(csc, rows, fanout, request.replacement, slots)
    elif request.kernel is Kernel.SMALLEST:
        sample_smallest(csc, rows, fanout, order_of(request), slots)
    else:
        assert request.sums is not None
        sample_weighted(csc, request.sums.values, rows, fanout, request.replacement, slots)
    torch.cumsum(slots.counts, 0, dtype=torch.int64, out=offsets[1:])
    return _Started(request, rows, offsets, slots, is_outside)


_TYPES = {
    **dict.fromkeys(("edges", "offsets", "edges_out"), "*i64"),
    **dict.fromkeys(("ids", "counts", "nodes_out"), "*i32"),
    **dict.fromkeys(("slots", "per_row"), "i32"),
}
VARIANTS = (
    Variant("close gaps", _close_gaps, _TYPES, {"edges": None, "edges_out": None, "BLOCK": _SLOTS}),
    Variant("close gaps, edges", _close_gaps, _TYPES, {"BLOCK": _SLOTS}),
    Variant(
        *("close gaps, 64-bit ids", _close_gaps),
        {**_TYPES, "ids": "*i64", "nodes_out": "*i64"},
        {"BLOCK": _SLOTS},
    ),
)
