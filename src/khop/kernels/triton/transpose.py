"""Transposed edges on the device: counted by source, then sorted by edge within each source."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from khop.kernels.csc import Csc
from khop.kernels.triton.launch import Variant, launch
from khop.kernels.triton.words import first_above

EDGES = 128  # of a program
AHEAD = 4  # edges of a source that are loaded before the first of them is compared


@triton.jit(do_not_specialize=["num_rows", "capacity"])
def count_edges(
    indptr: tl.tensor,
    indices: tl.tensor,
    counts: tl.tensor,
    places: tl.tensor,
    num_rows: tl.tensor,
    capacity: tl.tensor,
    EDGES: tl.constexpr,
) -> None:
    """Count the edges of each source in counts[source + 1]; give each edge any place among them.

    The order of places differs between runs; `put_in_order` does not depend on it.
    """
    edge = tl.program_id(0) * EDGES + tl.arange(0, EDGES)
    is_edge = (edge < capacity) & (edge < tl.load(indptr + num_rows))
    source = tl.load(indices + edge, mask=is_edge, other=0)
    place = tl.atomic_add(counts + source + 1, 1, mask=is_edge, sem="relaxed")
    tl.store(places + edge, place, mask=is_edge)


@triton.jit(do_not_specialize=["num_rows", "capacity"])
def list_edges(
    indptr: tl.tensor,
    indices: tl.tensor,
    places: tl.tensor,
    turned: tl.tensor,
    listed: tl.tensor,
    num_rows: tl.tensor,
    capacity: tl.tensor,
    EDGES: tl.constexpr,
) -> None:
    """Write every edge into the list of its source, at its place; turned: int64 (sources + 1)."""
    edge = tl.program_id(0) * EDGES + tl.arange(0, EDGES)
    is_edge = (edge < capacity) & (edge < tl.load(indptr + num_rows))
    source = tl.load(indices + edge, mask=is_edge, other=0)
    begin = tl.load(turned + source, mask=is_edge, other=0)
    place = tl.load(places + edge, mask=is_edge, other=0)
    tl.store(listed + begin + place, edge, mask=is_edge)


@triton.jit(do_not_specialize=["num_rows", "capacity"])
def put_in_order(
    indptr: tl.tensor,
    indices: tl.tensor,
    turned: tl.tensor,
    listed: tl.tensor,
    rows: tl.tensor,
    num_rows: tl.tensor,
    capacity: tl.tensor,
    AHEAD: tl.constexpr,
    EDGES: tl.constexpr,
) -> None:
    """Write the row of every edge behind as many as there are earlier edges in the list of its source."""
    edge = tl.program_id(0) * EDGES + tl.arange(0, EDGES)
    is_edge = (edge < capacity) & (edge < tl.load(indptr + num_rows))
    source = tl.load(indices + edge, mask=is_edge, other=0)
    begin = tl.load(turned + source, mask=is_edge, other=0)
    degree = tl.load(turned + source + 1, mask=is_edge, other=0) - begin
    earlier = tl.zeros([EDGES], tl.int32)
    for other in range(0, tl.max(degree, 0), AHEAD):
        for step in tl.static_range(AHEAD):
            is_other = other + step < degree
            earlier += (tl.load(listed + begin + other + step, mask=is_other, other=edge) < edge).to(tl.int32)
    first = tl.full([EDGES], 1, tl.int64)
    row = first_above(indptr, first, first + num_rows, edge, is_edge) - 1
    tl.store(rows + begin + earlier, row.to(tl.int32), mask=is_edge)


def transpose(indptr: Tensor, indices: Tensor, num_sources: int) -> Csc:
    """Return for each source, in edge order, the rows that contain it: int64 indptr, int32 indices.

    `indices` are int32 and may be more than the edges of `indptr`; the rest is in no row of the result. A
    source of d edges costs d comparisons per edge, of one thread each.
    """
    capacity, num_rows = indices.numel(), indptr.numel() - 1
    counts = torch.zeros(num_sources + 1, dtype=torch.int32, device=indices.device)
    places, listed, rows = (torch.empty_like(indices) for _ in range(3))
    programs, size = triton.cdiv(capacity, EDGES), (num_rows, capacity)
    launch(count_edges, programs, indices, indptr, indices, counts, places, *size, EDGES=EDGES)
    turned = counts.cumsum(0)
    launch(list_edges, programs, indices, indptr, indices, places, turned, listed, *size, EDGES=EDGES)
    operands = (indptr, indices, turned, listed, rows)
    launch(put_in_order, programs, indices, *operands, *size, AHEAD=AHEAD, EDGES=EDGES)
    return Csc(turned, rows)


_TYPES = {
    **dict.fromkeys(("indptr", "turned"), "*i64"),
    **dict.fromkeys(("indices", "counts", "places", "listed", "rows"), "*i32"),
    **dict.fromkeys(("num_rows", "capacity"), "i32"),
}
VARIANTS = (
    Variant("transpose: count edges", count_edges, _TYPES, {"EDGES": EDGES}),
    Variant("transpose: list edges", list_edges, _TYPES, {"EDGES": EDGES}),
    Variant("transpose: put in order", put_in_order, _TYPES, {"AHEAD": AHEAD, "EDGES": EDGES}),
)
