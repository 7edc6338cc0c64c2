"""All in-edges of a frontier on the device, in a fixed-size output: `sample_hop` with fanout -1.

Excluded edges become empty entries, -1, which `expansion_csr` removes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from khop.kernels.csc import Csc
from khop.kernels.gather import Shards, kernel_operands
from khop.kernels.triton.exclude_edges import ExcludedPairs, is_excluded
from khop.kernels.triton.launch import Variant, launch
from khop.kernels.triton.node_table import AT_ONCE, Overflow, sum_before
from khop.kernels.triton.rows import DeviceRows, Marks, entry_at, mark, row_edges, stamped, store_slots
from khop.kernels.triton.words import first_above

_ROWS = 512  # per program
_EDGES = 256  # per program
_UNSPECIALIZED = ["base", "num_rows", "capacity", "room", "num_sources", "num_pairs"]


@dataclass(frozen=True)
class Omitted:
    """Edges to replace by empty entries."""

    sums: Tensor | Shards | None = (
        None  # int64 (edges of the graph), running sums of weights; edges of weight 0
    )
    excluded: ExcludedPairs | None = None


@dataclass(frozen=True)
class EdgeTrees:
    """The trees of edges, copied from their rows."""

    of_rows: Tensor  # int64 (capacity)
    of_edges: Tensor  # int64 (room), written by an expansion; undefined after the last edge


@dataclass(frozen=True)
class AllNeighbors:
    """All edges of rows, contiguous row by row."""

    offsets: Tensor  # int64 (capacity + 1), correct even if the edges do not fit
    ids: Tensor  # int32 or int64 (room), source nodes; -1 after the last edge
    edges: Tensor | None = None  # int64 (room), positions in the graph; -1 after the last edge
    trees: EdgeTrees | None = None
    overflow: Overflow | None = None  # flagged if the edges do not fit
    omitted: Omitted = Omitted()


@triton.jit(do_not_specialize=_UNSPECIALIZED)
def block_degrees(
    indptr: tl.tensor,
    nodes: tl.tensor,
    ranges: tl.tensor,
    count: tl.tensor,
    sums: tl.tensor,
    num_rows: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Write the number of edges of each block of rows."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    _, _, begin, end = row_edges(indptr, nodes, ranges, count, num_rows, rows)
    tl.store(sums + tl.program_id(0), tl.sum(end - begin, 0))


@triton.jit(do_not_specialize=_UNSPECIALIZED)
def row_offsets(
    indptr: tl.tensor,
    nodes: tl.tensor,
    ranges: tl.tensor,
    count: tl.tensor,
    sums: tl.tensor,
    offsets: tl.tensor,
    overflow: tl.tensor,
    stamp: tl.tensor,
    num_rows: tl.tensor,
    capacity: tl.tensor,
    room: tl.tensor,
    BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    """Write the running number of edges before each row, and the flag if the last one exceeds the room."""
    program = tl.program_id(0)
    rows = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    _, _, begin, end = row_edges(indptr, nodes, ranges, count, num_rows, rows)
    before = sum_before(sums, program, AT_ONCE)
    degrees = end - begin
    tl.store(offsets + rows + 1, before + tl.cumsum(degrees, 0), mask=rows < capacity)
    if program == 0:
        tl.store(offsets, tl.zeros([], tl.int64))
    if overflow is not None:
        is_over = before + tl.sum(degrees, 0) > room
        tl.store(overflow, tl.load(stamp), mask=is_over & (program == tl.num_programs(0) - 1))


@triton.jit(do_not_specialize=_UNSPECIALIZED)
def expand(
    indptr: tl.tensor,
    indices: tl.tensor,
    index_layout: tl.tensor,
    nodes: tl.tensor,
    ranges: tl.tensor,
    count: tl.tensor,
    offsets: tl.tensor,
    ids: tl.tensor,
    edges: tl.tensor,
    row_trees: tl.tensor,
    trees: tl.tensor,
    sums: tl.tensor,
    sum_layout: tl.tensor,
    pairs: tl.tensor,
    table: tl.tensor,
    stamp: tl.tensor,
    base: tl.tensor,
    num_sources: tl.tensor,
    num_pairs: tl.tensor,
    num_rows: tl.tensor,
    capacity: tl.tensor,
    room: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Write the edges, one per thread, which searches its row in the offsets: hubs are not slower."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < room
    there = inside & (at < tl.load(offsets + capacity))
    zero = at * 0
    row = first_above(offsets, None, zero, zero + capacity + 1, at, there) - 1
    row = tl.where(there, row, 0)
    _, node, begin, _ = row_edges(indptr, nodes, ranges, count, num_rows, row)
    edge = begin + at - tl.load(offsets + row, mask=there, other=0)
    if trees is not None:
        tl.store(trees + at, tl.load(row_trees + row, mask=there, other=0), mask=there)
    if sums is not None:
        is_later = there & (edge > tl.load(indptr + node, mask=there, other=0))
        before = tl.load(entry_at(sums, sum_layout, edge - 1, is_later), mask=is_later, other=0)
        there = there & (tl.load(entry_at(sums, sum_layout, edge, there), mask=there, other=0) > before)
    if pairs is not None:
        source = tl.load(entry_at(indices, index_layout, edge, there), mask=there, other=-1).to(tl.int64)
        there = there & (is_excluded(pairs, num_pairs, num_sources, node, source, there) == 0)
    source = store_slots(ids, edges, indices, index_layout, at, edge, there, inside)
    mark(table, stamped(stamp, base), at, source, there)


def all_neighbors(csc: Csc, rows: DeviceRows, expansion: AllNeighbors, marks: Marks | None = None) -> None:
    """Write all in-edges of every row, or those in its range, in row order.

    With `marks`, the first position of every source node is marked in the same launch. If the edges do not
    fit, the overflow is flagged and only the first ones are written. Does not synchronize with the device.
    """
    offsets_of_all(csc, rows, expansion.offsets, expansion.overflow, expansion.ids.numel())
    expand_all(csc, rows, expansion, marks)


def offsets_of_all(
    csc: Csc, rows: DeviceRows, offsets: Tensor, overflow: Overflow | None = None, room: int = 0
) -> None:
    """Write the first half of an expansion: `offsets`, and the flag if more than `room` edges follow."""
    if rows.capacity == 0:
        offsets.zero_()
        return
    blocks = triton.cdiv(rows.capacity, _ROWS)
    sums = torch.empty(blocks, dtype=torch.int64, device=offsets.device)
    frontier = (csc.indptr, rows.nodes, rows.ranges, rows.count, sums)
    launch(block_degrees, blocks, offsets, *frontier, csc.num_rows, BLOCK=_ROWS)
    launch(
        *(row_offsets, blocks, offsets, *frontier, offsets),
        *((None, None) if overflow is None else (overflow.flag, overflow.stamp)),
        *(csc.num_rows, rows.capacity, room),
        BLOCK=_ROWS,
        AT_ONCE=AT_ONCE,
    )


def expand_all(csc: Csc, rows: DeviceRows, expansion: AllNeighbors, marks: Marks | None = None) -> None:
    """Write the second half of an expansion: sources and positions of the edges, from its offsets."""
    room, trees = expansion.ids.numel(), expansion.trees
    sums, excluded = expansion.omitted.sums, expansion.omitted.excluded
    launch(
        *(expand, triton.cdiv(room, _EDGES), expansion.ids),
        *(csc.indptr, *kernel_operands(csc.indices), rows.nodes, rows.ranges, rows.count),
        *(expansion.offsets, expansion.ids, expansion.edges),
        *((None, None) if trees is None else (trees.of_rows, trees.of_edges)),
        *(*kernel_operands(sums), None if excluded is None else excluded.pairs),
        *((None, None, 0) if marks is None else (marks.table, marks.stamp, marks.base)),
        *((0, 0) if excluded is None else (excluded.num_sources, excluded.pairs.numel())),
        *(csc.num_rows, rows.capacity, room),
        BLOCK=_EDGES,
    )


_POINTERS = (
    *("indptr", "nodes", "ranges", "sums", "offsets", "edges", "table", "stamp", "overflow"),
    *("row_trees", "trees", "pairs", "index_layout", "sum_layout"),
)
_TYPES = {
    **dict.fromkeys(_POINTERS, "*i64"),
    **dict.fromkeys(("indices", "count", "ids"), "*i32"),
    **dict.fromkeys(_UNSPECIALIZED, "i32"),
}
_MERGED = dict.fromkeys(("index_layout", "ranges", "row_trees", "trees", "sums", "sum_layout", "pairs"))
_PLAIN = dict.fromkeys(("edges", "table", "stamp"))
_SCAN = {"BLOCK": _ROWS, "AT_ONCE": AT_ONCE}
_LONG = {**_TYPES, "indices": "*i64", "ids": "*i64"}  # for graphs with 64-bit ids
VARIANTS = (
    Variant("degrees of blocks", block_degrees, _TYPES, {"ranges": None, "BLOCK": _ROWS}),
    Variant(
        "offsets of rows", row_offsets, _TYPES, {**_SCAN, "ranges": None, "overflow": None, "stamp": None}
    ),
    Variant("offsets of ranges", row_offsets, _TYPES, _SCAN),
    Variant("expand", expand, _TYPES, {**_MERGED, **_PLAIN, "BLOCK": _EDGES}),
    Variant("expand, marked", expand, _TYPES, {**_MERGED, "edges": None, "BLOCK": _EDGES}),
    Variant("expand, everything", expand, _TYPES, {"BLOCK": _EDGES}),
    Variant("expand, 64-bit ids", expand, _LONG, {"BLOCK": _EDGES}),
)
