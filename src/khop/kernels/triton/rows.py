"""Operands of the kernels that draw in-edges, with fixed capacities: rows, slots and first-seen marks.

The number of rows is read on the device, so a launch needs no count on the host and can be captured in a CUDA
graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from khop.kernels.edge_times import HopRows
from khop.kernels.philox import signed


@dataclass(frozen=True)
class DeviceRows:
    """The frontier of one edge type on the device, and the keys of its rows' draws."""

    nodes: Tensor  # int64 (capacity), rows of the graph; entries from `count` on are not read
    count: Tensor  # int32 (1), rows in use
    key: Tensor  # int64 (1), the bits of the batch's key
    stream: int
    original_ids: Tensor | None = None  # int64 (rows of the graph), the ids that key the draws
    trees: Tensor | None = None  # int64 (capacity), the position of each disjoint tree's seed
    ranges: Tensor | None = None  # int64 (2 capacity), begin and end of each row's edges; None: all edges

    @property
    def capacity(self) -> int:
        """Number of rows that fit."""
        return self.nodes.numel()

    @property
    def signed_stream(self) -> int:
        """The stream as an int32, so that its type never changes between launches."""
        return self.stream - (1 << 32) if self.stream >> 31 else self.stream


def rows_of(rows: HopRows) -> DeviceRows:
    """Return rows in the form of the kernels, all in use. Numbers are filled in on the device."""
    nodes = rows.nodes.contiguous()
    return DeviceRows(
        nodes,
        torch.full((1,), nodes.numel(), dtype=torch.int32, device=nodes.device),
        torch.full((1,), signed(rows.key.value), dtype=torch.int64, device=nodes.device),
        rows.stream,
        *(None if ids is None else ids.contiguous() for ids in (rows.original_ids, rows.tree, rows.ranges)),
    )


@dataclass(frozen=True)
class Slots:
    """The edges drawn for rows: row r has slots r K to r K + counts[r] - 1, for K slots per row."""

    ids: Tensor  # int32 or int64 (capacity K), source nodes; -1 in unused slots
    counts: Tensor  # int32 (capacity); 0 for rows that are not in use
    edges: Tensor | None = None  # int64 (capacity K), positions in the graph; -1 in unused slots

    @classmethod
    def empty(cls, capacity: int, per_row: int, dtype: torch.dtype, like: Tensor) -> Slots:
        """Return slots without edge positions, on the device of a tensor."""
        return cls(
            torch.empty(capacity * per_row, dtype=dtype, device=like.device),
            torch.empty(capacity, dtype=torch.int32, device=like.device),
        )


@dataclass(frozen=True)
class Marks:
    """Table of the source type that marks the first position of each sampled node; see `node_table`."""

    table: Tensor  # int64 (nodes of the source type)
    stamp: Tensor  # int64 (1), the number of the batch
    base: int  # position 0 of these slots counts as this number; base + slots <= 2^31 - 1


@triton.jit
def row_edges(
    indptr: tl.tensor,
    nodes: tl.tensor,
    ranges: tl.tensor,
    count: tl.tensor,
    num_rows: tl.tensor,
    rows: tl.tensor,
) -> tl.tensor:
    """Return for each row if it is in use, its node, and begin and end of its edges, int64.

    A node outside the graph counts as a row that is not in use, so that kernels do not read out of bounds.
    """
    live = rows < tl.load(count)
    node = tl.load(nodes + rows, mask=live, other=-1)
    live = live & (node >= 0) & (node < num_rows)
    if ranges is not None:
        begin = tl.load(ranges + 2 * rows, mask=live, other=0)
        end = tl.load(ranges + 2 * rows + 1, mask=live, other=0)
    else:
        begin = tl.load(indptr + node, mask=live, other=0)
        end = tl.load(indptr + node + 1, mask=live, other=0)
    return live, node, begin, end


@triton.jit
def piece_of(layout: tl.tensor, row: tl.tensor, live: tl.tensor) -> tl.tensor:
    """Return for rows of a divided table the begins of their pieces, in 16 bytes, and their rows in these.

    See `khop.kernels.gather.Shards`.
    """
    rows_each = tl.load(layout)
    reciprocal = tl.load(layout + 1).to(tl.uint64, bitcast=True)
    # The quotient, or 1 less. A division of 64 bits would take ten times as many instructions, and spill.
    piece = tl.umulhi(row.to(tl.uint64, bitcast=True), reciprocal).to(tl.int32)
    piece += (row - piece.to(tl.int64) * rows_each >= rows_each).to(tl.int32)
    begin = tl.load(layout + 2 + piece, mask=live, other=0)
    return begin, row - piece.to(tl.int64) * rows_each


@triton.jit
def entry_at(array: tl.tensor, layout: tl.tensor, position: tl.tensor, live: tl.tensor) -> tl.tensor:
    """Return the addresses of entries of an array, which may be divided. Dead positions have any address."""
    at = array + position
    if layout is not None:
        begin, row = piece_of(layout, position, live)
        at = array + (begin * (128 // array.dtype.element_ty.primitive_bitwidth) + row)
    return at


@triton.jit
def draw_ids(original_ids: tl.tensor, node: tl.tensor, live: tl.tensor) -> tl.tensor:
    """Return the id in each row's counter, uint64: the original id of its node."""
    ids = node
    if original_ids is not None:
        ids = tl.load(original_ids + node, mask=live, other=0)
    return ids.to(tl.uint64, bitcast=True)


@triton.jit
def store_slots(
    ids: tl.tensor,
    edges: tl.tensor,
    indices: tl.tensor,
    index_layout: tl.tensor,
    at: tl.tensor,
    edge: tl.tensor,
    drawn: tl.tensor,
    inside: tl.tensor,
) -> tl.tensor:
    """Write the sources of drawn edges, and -1 to other slots inside; return the sources, int64."""
    source = tl.load(entry_at(indices, index_layout, edge, drawn), mask=drawn, other=-1)
    tl.store(ids + at, source.to(ids.dtype.element_ty), mask=inside)
    if edges is not None:
        tl.store(edges + at, tl.where(drawn, edge, -1), mask=inside)
    return source.to(tl.int64)


@triton.jit
def stamped(stamp: tl.tensor, base: tl.tensor) -> tl.tensor:
    """Return the table entry of position 0, int64: see `node_table`. That of position p is smaller by p."""
    entry = tl.full([], 2147483647, tl.int64) - base
    if stamp is not None:
        entry = entry | (tl.load(stamp) << 32)
    return entry


@triton.jit
def mark(table: tl.tensor, entry: tl.tensor, at: tl.tensor, source: tl.tensor, drawn: tl.tensor) -> None:
    """Mark the positions `at` of drawn sources in the table; the first position of a node wins."""
    if table is not None:
        tl.atomic_max(table + source, entry - at, mask=drawn, sem="relaxed")
