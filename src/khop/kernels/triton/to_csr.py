"""Compaction of drawn slots to CSR arrays of local ids, equal to those of the CPU core.

Row r of a draw has `counts[r]` ids, starting at slot r * K. Rows after the frontier's last node have a count
of 0, so the padded arrays are those of a block whose tail rows have no edges. Blocks of rows are summed
first; each block then sums the blocks before it. Functions do not read values on the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from khop.kernels.triton.launch import Variant, launch
from khop.kernels.triton.node_table import AT_ONCE, LOCAL_ID_LIMIT, local_or_slot, sum_before
from khop.kernels.triton.rows import Slots

BLOCK = 256  # rows of a program
_AT_ONCE = 4  # slots of a row that a program copies at once: neighboring threads read neighboring slots


@dataclass(frozen=True)
class CsrBuffers:
    """Output arrays of one edge type, longer than most batches need."""

    indptr: Tensor  # int64 (rows + 1)
    indices: Tensor  # int32 (edges)
    edge_ids: Tensor | None = None  # int64 (edges)
    weights: Tensor | None = None  # float32 (edges), not written by kernels
    elapsed: Tensor | None = None  # int64 (edges), not written by kernels


@dataclass(frozen=True)
class OutputPlace:
    """The position of a hop's rows in the output. Hops of the subgraph expansion share one output."""

    first: Tensor  # int32 (1), the output row of the hop's first row
    edges_before: Tensor  # int32 (1), edges of earlier hops
    edges: Tensor  # int32 (1), written: edges of this and earlier hops


@triton.jit(do_not_specialize=["rows"])
def _row_sums(counts: tl.tensor, sums: tl.tensor, rows: tl.tensor, BLOCK: tl.constexpr) -> None:
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums + tl.program_id(0), tl.sum(tl.load(counts + at, mask=at < rows, other=0), 0))


@triton.jit
def _copy_slots(
    ids: tl.tensor,
    edges: tl.tensor,
    table: tl.tensor,
    indices: tl.tensor,
    edge_ids: tl.tensor,
    slot: tl.tensor,
    to: tl.tensor,
    there: tl.tensor,
    base: tl.tensor,
) -> None:
    v = tl.load(ids + slot, mask=there, other=-1).to(tl.int64)
    x = local_or_slot(table, v)
    # A node beyond a capacity has no local id: 0 is a valid row, and the batch is discarded.
    tl.store(indices + to, tl.where(x < base, x, 0).to(tl.int32), mask=there)
    if edge_ids is not None:
        tl.store(edge_ids + to, tl.load(edges + slot, mask=there, other=0), mask=there)


@triton.jit(do_not_specialize=["base", "rows", "out_rows"])
def _to_csr(
    ids: tl.tensor,
    counts: tl.tensor,
    edges: tl.tensor,
    sums: tl.tensor,
    table: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    edge_ids: tl.tensor,
    first: tl.tensor,
    edges_before: tl.tensor,
    edges_now: tl.tensor,
    base: tl.tensor,
    rows: tl.tensor,
    out_rows: tl.tensor,
    K: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    pid = tl.program_id(0)
    r = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    n = tl.load(counts + r, mask=r < rows, other=0)
    begin = tl.load(edges_before) + sum_before(sums, tl.minimum(pid, tl.cdiv(rows, BLOCK)), AT_ONCE)
    end = begin + tl.cumsum(n, 0)
    row = tl.load(first) + r
    tl.store(indptr + row + 1, end.to(tl.int64), mask=row < out_rows)
    tl.store(indptr + r, (end - n).to(tl.int64), mask=(r == 0) & (row == 0))
    if pid == tl.num_programs(0) - 1:
        tl.store(edges_now, begin + tl.sum(n, 0))
    for start in range(0, K, SLOTS):
        j = start + tl.arange(0, SLOTS)[None, :]
        slot, to, there = (r * K)[:, None] + j, (end - n)[:, None] + j, j < n[:, None]
        _copy_slots(ids, edges, table, indices, edge_ids, slot, to, there, base)


def num_row_blocks(rows: int) -> int:
    """Return the number of blocks of rows: the length of `sums`."""
    return -(-rows // BLOCK)


def row_sums(counts: Tensor, sums: Tensor) -> None:
    """Sum the counts of each block of rows into `sums`, int32 (blocks)."""
    launch(_row_sums, num_row_blocks(counts.numel()), counts, counts, sums, counts.numel(), BLOCK=BLOCK)


def to_csr(drawn: Slots, sums: Tensor, table: Tensor, base: int, place: OutputPlace, out: CsrBuffers) -> None:
    """Write the rows of a draw to `out` from row `place.first` on; later rows get no edges.

    `sums` is from `row_sums`. `table` has the local ids of all drawn ids; see `node_table`. There must be at
    least one row.
    """
    out_rows, rows = out.indptr.numel() - 1, drawn.counts.numel()
    if out.indices.numel() >= LOCAL_ID_LIMIT:
        room = f"room for {out.indices.numel():,} edges"
        raise ValueError(f"{room}: must be below {LOCAL_ID_LIMIT:,}; sample fewer neighbors")
    fanout = drawn.ids.numel() // rows
    launch(
        _to_csr,
        num_row_blocks(max(out_rows, rows)),
        drawn.ids,
        drawn.ids,
        drawn.counts,
        drawn.edges,
        sums,
        table,
        out.indptr,
        out.indices,
        out.edge_ids,
        place.first,
        place.edges_before,
        place.edges,
        base,
        rows,
        out_rows,
        K=fanout,
        SLOTS=_slots(fanout),
        BLOCK=BLOCK,
        AT_ONCE=AT_ONCE,
    )


def _slots(fanout: int) -> int:
    return min(_AT_ONCE, int(triton.next_power_of_2(max(1, fanout))))  # a fanout may be 0


_TYPES = {
    **dict.fromkeys(("edges", "table", "indptr", "edge_ids"), "*i64"),
    **dict.fromkeys(("ids", "counts", "sums", "indices", "first", "edges_before", "edges_now"), "*i32"),
    **dict.fromkeys(("base", "rows", "out_rows"), "i32"),
}
_PLAIN = {"edges": None, "edge_ids": None}
_SCAN = {"BLOCK": BLOCK, "AT_ONCE": AT_ONCE}


def _constants(fanout: int) -> dict[str, object]:
    return {**_SCAN, "K": fanout, "SLOTS": _slots(fanout)}


_WIDE = {**_TYPES, "ids": "*i64"}
VARIANTS = (
    Variant("row sums", _row_sums, _TYPES, {"BLOCK": BLOCK}),
    *(Variant(f"to CSR {k}", _to_csr, _TYPES, {**_constants(k), **_PLAIN}) for k in (1, 5, 10, 15)),
    Variant("to CSR 32, everything", _to_csr, _WIDE, _constants(32)),
    Variant("to CSR 15, 64-bit ids", _to_csr, _WIDE, _constants(15)),
    Variant("to CSR 100, everything", _to_csr, _TYPES, _constants(100)),
)
