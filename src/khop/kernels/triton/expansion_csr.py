"""Compaction of an expansion to CSR arrays of local ids, without its empty entries.

Blocks of entries are summed first; each block then sums the blocks before it. The edges kept before each
entry give the ends of the rows. Functions do not read values on the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from khop.kernels.triton.launch import Variant, launch
from khop.kernels.triton.node_table import AT_ONCE, LOCAL_ID_LIMIT, local_or_slot, sum_before
from khop.kernels.triton.to_csr import CsrBuffers, OutputPlace

_EDGES = 512  # per program
_ROWS = 512  # per program
_UNSPECIALIZED = ["base", "room", "rows", "out_rows"]


@dataclass(frozen=True)
class Expanded:
    """The edges of an expansion whose nodes are in a table, and buffers for sums."""

    keys: Tensor  # int32 or int64 (room), indices of the table; -1: no edge
    offsets: Tensor  # int64 (rows + 1), the entries of each row
    edges: Tensor | None  # int64 (room), positions in the graph
    sums: Tensor  # int32 (blocks of entries)
    kept_before: Tensor  # int32 (room + 1), edges before each entry

    @classmethod
    def of(cls, keys: Tensor, offsets: Tensor, edges: Tensor | None) -> Expanded:
        """Return the edges with new buffers for the sums."""
        room = keys.numel()
        sums = torch.zeros(_blocks(room), dtype=torch.int32, device=keys.device)
        return cls(keys, offsets, edges, sums, torch.zeros(room + 1, dtype=torch.int32, device=keys.device))


@triton.jit(do_not_specialize=["room"])
def _kept_sums(keys: tl.tensor, sums: tl.tensor, room: tl.tensor, BLOCK: tl.constexpr) -> None:
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_kept = tl.load(keys + at, mask=at < room, other=-1) >= 0
    tl.store(sums + tl.program_id(0), tl.sum(is_kept.to(tl.int32), 0))


@triton.jit(do_not_specialize=["base", "room"])
def _copy_kept(
    keys: tl.tensor,
    edges: tl.tensor,
    sums: tl.tensor,
    table: tl.tensor,
    kept_before: tl.tensor,
    indices: tl.tensor,
    edge_ids: tl.tensor,
    edges_before: tl.tensor,
    base: tl.tensor,
    room: tl.tensor,
    BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    at = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + at, mask=at < room, other=-1).to(tl.int64)
    is_kept = key >= 0
    number = is_kept.to(tl.int32)
    before = sum_before(sums, program, AT_ONCE) + tl.cumsum(number, 0) - number
    tl.store(kept_before + at, before, mask=at <= room)
    to = tl.load(edges_before) + before
    x = local_or_slot(table, key)
    # A node beyond a capacity has no local id: 0 is a valid row, and the batch is discarded.
    tl.store(indices + to, tl.where(x < base, x, 0).to(tl.int32), mask=is_kept)
    if edge_ids is not None:
        tl.store(edge_ids + to, tl.load(edges + at, mask=is_kept, other=0), mask=is_kept)


@triton.jit(do_not_specialize=["room", "rows", "out_rows"])
def _row_ends(
    offsets: tl.tensor,
    kept_before: tl.tensor,
    indptr: tl.tensor,
    first: tl.tensor,
    edges_before: tl.tensor,
    edges_now: tl.tensor,
    room: tl.tensor,
    rows: tl.tensor,
    out_rows: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Write the ends of the rows; later rows are empty."""
    r = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    before = tl.load(edges_before)
    place = tl.minimum(tl.load(offsets + tl.minimum(r + 1, rows)), room)
    row = tl.load(first) + r
    tl.store(indptr + row + 1, (before + tl.load(kept_before + place)).to(tl.int64), mask=row < out_rows)
    tl.store(indptr + r, (before + r * 0).to(tl.int64), mask=(r == 0) & (row == 0))
    if tl.program_id(0) == 0:
        last = tl.minimum(tl.load(offsets + rows), room)
        tl.store(edges_now, before + tl.load(kept_before + last))


def expansion_csr(drawn: Expanded, table: Tensor, base: int, place: OutputPlace, out: CsrBuffers) -> None:
    """Write the edges to `out` from row `place.first` on; later rows get no edges.

    `table` has the local ids of all nodes; see `node_table`. There must be at least one row.
    """
    room, rows, out_rows = drawn.keys.numel(), drawn.offsets.numel() - 1, out.indptr.numel() - 1
    if out.indices.numel() >= LOCAL_ID_LIMIT:
        given = f"room for {out.indices.numel():,} edges"
        raise ValueError(f"{given}: must be below {LOCAL_ID_LIMIT:,}; sample fewer neighbors")
    blocks = _blocks(room)
    launch(_kept_sums, blocks, drawn.keys, drawn.keys, drawn.sums, room, BLOCK=_EDGES)
    launch(
        *(_copy_kept, blocks, drawn.keys, drawn.keys, drawn.edges, drawn.sums, table, drawn.kept_before),
        *(out.indices, out.edge_ids, place.edges_before, base, room),
        BLOCK=_EDGES,
        AT_ONCE=AT_ONCE,
    )
    launch(
        *(_row_ends, triton.cdiv(max(out_rows, rows), _ROWS), drawn.keys, drawn.offsets, drawn.kept_before),
        *(out.indptr, place.first, place.edges_before, place.edges, room, rows, out_rows),
        BLOCK=_ROWS,
    )


def _blocks(room: int) -> int:
    """Return the number of blocks of the entries and their end."""
    return -(-(room + 1) // _EDGES)


_TYPES = {
    **dict.fromkeys(("edges", "table", "offsets", "indptr", "edge_ids"), "*i64"),
    **dict.fromkeys(("keys", "sums", "kept_before", "indices", "first", "edges_before", "edges_now"), "*i32"),
    **dict.fromkeys(_UNSPECIALIZED, "i32"),
}
_SCAN = {"BLOCK": _EDGES, "AT_ONCE": AT_ONCE}
VARIANTS = (
    Variant("kept sums", _kept_sums, _TYPES, {"BLOCK": _EDGES}),
    Variant("copy kept", _copy_kept, _TYPES, {**_SCAN, "edges": None, "edge_ids": None}),
    Variant("copy kept, everything", _copy_kept, {**_TYPES, "keys": "*i64"}, _SCAN),
    Variant("row ends", _row_ends, _TYPES, {"BLOCK": _ROWS}),
)
