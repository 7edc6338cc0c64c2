"""Transposed edges on the device: counted by source, then sorted by edge within each source.

An edge of a source with up to RUN edges is compared with all of them. The edges of a hub, which has more,
are sorted in runs of RUN edges, and RUNS runs at a time are merged. The host does not read whether there is a
hub: without one, the programs that sort and merge end at once.
"""

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
RUN = 512  # edges of a hub that are sorted by comparing each with each; a power of 2
RUNS = 32  # merged at a time; a power of 2
AT_ONCE = 8  # runs that a program searches at a time
MOST_PROGRAMS = 1024  # of a kernel for hubs; each takes several blocks of edges


@triton.jit(do_not_specialize=["num_rows", "capacity"])
def count_edges(
    indptr: tl.tensor,
    indices: tl.tensor,
    counts: tl.tensor,
    places: tl.tensor,
    has_hub: tl.tensor,
    num_rows: tl.tensor,
    capacity: tl.tensor,
    RUN: tl.constexpr,
    EDGES: tl.constexpr,
) -> None:
    """Count the edges of each source in counts[source + 1]; give each edge an arbitrary place among them.

    The order of places differs between runs; the kernels that follow do not depend on it. `has_hub` becomes 1
    if some source has more than RUN edges.
    """
    edge = tl.program_id(0) * EDGES + tl.arange(0, EDGES)
    is_edge = (edge < capacity) & (edge < tl.load(indptr + num_rows))
    source = tl.load(indices + edge, mask=is_edge, other=0)
    place = tl.atomic_add(counts + source + 1, 1, mask=is_edge, sem="relaxed")
    tl.store(places + edge, place, mask=is_edge)
    tl.store(has_hub + edge * 0, 1, mask=is_edge & (place >= RUN))


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


@triton.jit
def _list_of(
    indices: tl.tensor, turned: tl.tensor, edge: tl.tensor, is_edge: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Return begin and length, int64, of the list that has each edge."""
    source = tl.load(indices + edge, mask=is_edge, other=0)
    begin = tl.load(turned + source, mask=is_edge, other=0)
    return begin, tl.load(turned + source + 1, mask=is_edge, other=0) - begin


@triton.jit
def _smaller(
    listed: tl.tensor, begin: tl.tensor, length: tl.tensor, edge: tl.tensor, AHEAD: tl.constexpr
) -> tl.tensor:
    """Count the listed edges from `begin` on, `length` of them, that come before each edge, int32."""
    smaller = edge * 0
    for other in range(0, tl.max(length, 0), AHEAD):
        for step in tl.static_range(AHEAD):
            is_other = other + step < length
            smaller += (tl.load(listed + begin + other + step, mask=is_other, other=edge) < edge).to(tl.int32)
    return smaller


@triton.jit(do_not_specialize=["num_rows", "capacity"])
def put_in_order(
    indptr: tl.tensor,
    indices: tl.tensor,
    turned: tl.tensor,
    listed: tl.tensor,
    edge_rows: tl.tensor,
    rows: tl.tensor,
    num_rows: tl.tensor,
    capacity: tl.tensor,
    AHEAD: tl.constexpr,
    RUN: tl.constexpr,
    EDGES: tl.constexpr,
) -> None:
    """Write the row of every edge behind those of earlier edges of its source; of a hub's to `edge_rows`."""
    edge = tl.program_id(0) * EDGES + tl.arange(0, EDGES)
    is_edge = (edge < capacity) & (edge < tl.load(indptr + num_rows))
    begin, degree = _list_of(indices, turned, edge, is_edge)
    is_hub = degree > RUN
    smaller = _smaller(listed, begin, tl.where(is_hub, 0, degree), edge, AHEAD)
    first = tl.full([EDGES], 1, tl.int64)
    row = (first_above(indptr, None, first, first + num_rows, edge, is_edge) - 1).to(tl.int32)
    tl.store(rows + begin + smaller, row, mask=is_edge & (is_hub == 0))
    tl.store(edge_rows + edge, row, mask=is_edge & is_hub)


@triton.jit
def _edges_to_sort(
    indptr: tl.tensor, has_hub: tl.tensor, num_rows: tl.tensor, capacity: tl.tensor
) -> tl.tensor:
    """Return the number of edges, int32; 0 without a hub."""
    return tl.minimum(tl.load(indptr + num_rows), capacity).to(tl.int32) * tl.load(has_hub)


@triton.jit(do_not_specialize=["num_rows", "capacity"])
def sort_runs(
    indptr: tl.tensor,
    indices: tl.tensor,
    turned: tl.tensor,
    listed: tl.tensor,
    has_hub: tl.tensor,
    ordered: tl.tensor,
    num_rows: tl.tensor,
    capacity: tl.tensor,
    AHEAD: tl.constexpr,
    RUN: tl.constexpr,
    EDGES: tl.constexpr,
) -> None:
    """Copy the lists, each RUN edges of a hub's sorted."""
    stop = _edges_to_sort(indptr, has_hub, num_rows, capacity)
    for start in range(tl.program_id(0) * EDGES, stop, tl.num_programs(0) * EDGES):
        at = start + tl.arange(0, EDGES)
        is_edge = at < stop
        edge = tl.load(listed + at, mask=is_edge, other=0)
        begin, degree = _list_of(indices, turned, edge, is_edge)
        is_hub = degree > RUN
        run = at - tl.where(is_hub, (at - begin) & (RUN - 1), 0)
        length = tl.where(is_hub, tl.minimum(begin + degree - run, RUN), 0)
        to = run + _smaller(listed, run, length, edge, AHEAD)
        tl.store(ordered + to, edge, mask=is_edge)


@triton.jit(do_not_specialize=["num_rows", "capacity", "length"])
def merge_runs(
    indptr: tl.tensor,
    indices: tl.tensor,
    turned: tl.tensor,
    ordered: tl.tensor,
    has_hub: tl.tensor,
    merged: tl.tensor,
    edge_rows: tl.tensor,
    rows: tl.tensor,
    num_rows: tl.tensor,
    capacity: tl.tensor,
    length: tl.tensor,
    RUNS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    EDGES: tl.constexpr,
) -> None:
    """Copy the lists, each RUNS runs of `length` edges merged; write the rows of lists sorted by that."""
    stop = _edges_to_sort(indptr, has_hub, num_rows, capacity)
    span = length.to(tl.int64) * RUNS
    for start in range(tl.program_id(0) * EDGES, stop, tl.num_programs(0) * EDGES):
        at = start + tl.arange(0, EDGES)
        is_edge = at < stop
        edge = tl.load(ordered + at, mask=is_edge, other=0)
        begin, degree = _list_of(indices, turned, edge, is_edge)
        has_runs = degree > length
        group = at - tl.where(has_runs, (at - begin) & (span - 1), 0)
        smaller = degree * 0
        for number in range(0, RUNS * tl.max(has_runs.to(tl.int32), 0), AT_ONCE):
            run = group[:, None] + (number + tl.arange(0, AT_ONCE))[None, :] * length
            size = tl.where(has_runs, begin + degree, 0)[:, None] - run  # of the run, and of those behind it
            found = run * 0
            step = length
            while step > 0:
                more = found + step
                is_inside = (more <= size) & (more <= length)
                other = tl.load(ordered + run + more - 1, mask=is_inside, other=0)
                found = tl.where(is_inside & (other < edge[:, None]), more, found)
                step = step >> 1
            smaller += tl.sum(found, 1)
        tl.store(merged + group + smaller, edge, mask=is_edge)
        is_sorted = is_edge & has_runs & (degree <= span)
        row = tl.load(edge_rows + edge, mask=is_sorted, other=0)
        tl.store(rows + group + smaller, row, mask=is_sorted)


def transpose(indptr: Tensor, indices: Tensor, num_sources: int) -> Csc:
    """Return for each source, in edge order, the rows that contain it: int64 indptr, int32 indices.

    `indices` are int32 and may be more than the edges of `indptr`; the rest is in no row of the result. An
    edge of a source with d edges costs min(d, RUN) comparisons of one thread, and for d above RUN a binary
    search in each of RUNS runs for each of ceil(log(d / RUN) / log(RUNS)) merges.
    """
    capacity, num_rows = indices.numel(), indptr.numel() - 1
    counts = torch.zeros(num_sources + 2, dtype=torch.int32, device=indices.device)
    counts, has_hub = counts[:-1], counts[-1:]
    places, listed, rows = (torch.empty_like(indices) for _ in range(3))
    programs, size = triton.cdiv(capacity, EDGES), (num_rows, capacity)
    counted = (indptr, indices, counts, places, has_hub)
    launch(count_edges, programs, indices, *counted, *size, RUN=RUN, EDGES=EDGES)
    turned = counts.cumsum(0)
    launch(list_edges, programs, indices, indptr, indices, places, turned, listed, *size, EDGES=EDGES)
    operands, block = (indptr, indices, turned, listed), {"AHEAD": AHEAD, "RUN": RUN, "EDGES": EDGES}
    edge_rows = places  # are used up
    launch(put_in_order, programs, indices, *operands, edge_rows, rows, *size, **block)
    if capacity > RUN:
        ordered, programs = torch.empty_like(indices), min(programs, MOST_PROGRAMS)
        launch(sort_runs, programs, indices, *operands, has_hub, ordered, *size, **block)
        length = RUN
        while length < capacity:
            runs = (indptr, indices, turned, ordered, has_hub, listed, edge_rows, rows, *size, length)
            launch(merge_runs, programs, indices, *runs, RUNS=RUNS, AT_ONCE=AT_ONCE, EDGES=EDGES)
            ordered, listed, length = listed, ordered, length * RUNS
    return Csc(turned, rows)


_TYPES = {
    **dict.fromkeys(("indptr", "turned"), "*i64"),
    **dict.fromkeys(("indices", "counts", "places", "listed", "rows", "has_hub"), "*i32"),
    **dict.fromkeys(("ordered", "merged", "edge_rows"), "*i32"),
    **dict.fromkeys(("num_rows", "capacity", "length"), "i32"),
}
_BLOCK = {"AHEAD": AHEAD, "RUN": RUN, "EDGES": EDGES}
_MERGE = {"RUNS": RUNS, "AT_ONCE": AT_ONCE, "EDGES": EDGES}
VARIANTS = (
    Variant("transpose: count edges", count_edges, _TYPES, {"RUN": RUN, "EDGES": EDGES}),
    Variant("transpose: list edges", list_edges, _TYPES, {"EDGES": EDGES}),
    Variant("transpose: put in order", put_in_order, _TYPES, _BLOCK),
    Variant("transpose: sort runs", sort_runs, _TYPES, _BLOCK),
    Variant("transpose: merge runs", merge_runs, _TYPES, _MERGE),
)
