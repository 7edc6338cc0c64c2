"""Means of neighbors' rows, read from the table of features: gathered rows are never written to memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from khop.kernels.csc import Csc
from khop.kernels.pitch import accessible_width, empty_rows, flat_rows, padded_pitch
from khop.kernels.triton.launch import Variant, launch
from khop.kernels.triton.tiles import Tiles, row_span, tile

AHEAD = 4  # edges of a row whose source rows are loaded before the first of them is added


@triton.jit(do_not_specialize=["num_table_rows", "num_rows"])
def mean_of_table_rows(
    table: tl.tensor,
    nodes: tl.tensor,
    slots: tl.tensor,
    cache: tl.tensor,
    scales: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    out: tl.tensor,
    num_table_rows: tl.tensor,
    num_rows: tl.tensor,
    PITCH: tl.constexpr,
    CACHE_PITCH: tl.constexpr,
    OUT_PITCH: tl.constexpr,
    READABLE: tl.constexpr,
    AHEAD: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Average rows nodes[indices] of the table over each row's edges, as a gather and `sum_rows` would."""
    wide = tl.float64 if table.dtype.element_ty == tl.float64 else tl.float32
    row, column = tile(WIDTH, ROWS, COLUMNS)
    is_row, is_column = row < num_rows, (column < WIDTH)[None, :]
    begin, degree = row_span(indptr, row, is_row)
    total = tl.zeros([ROWS, COLUMNS], wide)
    if scales is not None:
        scale = tl.load(scales + column, mask=column < WIDTH, other=0)[None, :]
    for edge in range(0, tl.max(degree, 0), AHEAD):
        values = ()
        for step in tl.static_range(AHEAD):
            is_edge = edge + step < degree
            source = tl.load(indices + begin + edge + step, mask=is_edge, other=0)
            id = tl.load(nodes + source, mask=is_edge, other=-1).to(tl.int64)
            is_read = is_edge & (id >= 0) & (id < num_table_rows)
            at = table + id[:, None] * PITCH + column[None, :]
            if slots is not None:
                slot = tl.load(slots + id, mask=is_read, other=-1).to(tl.int64)[:, None]
                at = tl.where(slot >= 0, cache + slot * CACHE_PITCH + column[None, :], at)
            value = tl.load(at, mask=is_read[:, None] & (column < READABLE)[None, :], other=0).to(wide)
            values += (value,)  # type: ignore[assignment]
        for step in tl.static_range(AHEAD):
            total += values[step] * scale if scales is not None else values[step]
    divisor = tl.maximum(degree, 1).to(wide)[:, None] + tl.zeros([ROWS, COLUMNS], wide)
    mean = total / divisor if wide == tl.float64 else tl.div_rn(total, divisor)
    at = out + row[:, None] * OUT_PITCH + column[None, :]
    tl.store(at, mean.to(out.dtype.element_ty), mask=is_row[:, None] & is_column)


def gather_mean(
    table: Tensor,
    nodes: Tensor,
    edges: Csc,
    *,
    dtype: torch.dtype,
    scales: Tensor | None = None,
    slots: Tensor | None = None,
    cache: Tensor | None = None,
) -> Tensor:
    """Return (rows, ...) in `dtype`: the mean of table[nodes[indices]] over each row's edges, 0 without any.

    The bits are those of `gather` or `gather_float32` and then `segment_mean`.
    """
    out = empty_rows(edges.num_rows, tuple(table.shape[1:]), dtype, nodes.device)
    if not out.numel():
        return out
    rows, into = flat_rows(table), flat_rows(out)
    copies = None if cache is None else flat_rows(cache)
    read = [rows] if copies is None else [rows, copies]
    tiles = Tiles.of(accessible_width(into), rows.element_size())
    operands = (
        *(rows, nodes, slots, copies, None if scales is None else scales.flatten()),
        *(edges.indptr, edges.indices, into, rows.shape[0], edges.num_rows),
    )
    pitches = rows.stride(0), read[-1].stride(0), into.stride(0)
    constants = _constants(tiles, pitches, min(accessible_width(tensor) for tensor in read))
    launch(mean_of_table_rows, tiles.programs(edges.num_rows), into, *operands, **constants)
    return out


def _constants(tiles: Tiles, pitches: tuple[int, int, int], readable: int) -> dict[str, int]:
    names = ("PITCH", "CACHE_PITCH", "OUT_PITCH")
    numbers = dict(zip(names, pitches, strict=True))
    return {**numbers, "READABLE": readable, "AHEAD": AHEAD, **tiles.constants}


def _variant(stored: str, made: str, width: int, without: tuple[str, ...]) -> Variant:
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "i8": torch.int8}
    pitch, out_pitch = padded_pitch(width, dtypes[stored]), padded_pitch(width, dtypes[made])
    tiles = Tiles.of(out_pitch, dtypes[stored].itemsize)
    return Variant(
        f"gather_mean {stored} to {made} {width}" + ("" if "slots" in without else ", slots"),
        mean_of_table_rows,
        {
            **dict.fromkeys(("table", "cache"), f"*{stored}"),
            **{"out": f"*{made}", "nodes": "*i64", "slots": "*i32", "scales": "*fp32"},
            **{"indptr": "*i64", "indices": "*i32", "num_table_rows": "i32", "num_rows": "i32"},
        },
        {**dict.fromkeys(without), **_constants(tiles, (pitch, pitch, out_pitch), pitch)},
        vector_bits=128,
        divides=True,
    )


VARIANTS = (
    _variant("fp32", "fp32", 100, ("slots", "cache", "scales")),
    _variant("fp32", "fp32", 100, ("scales",)),
    _variant("bf16", "bf16", 100, ("scales",)),
    _variant("bf16", "fp32", 100, ("scales",)),
    _variant("i8", "fp32", 100, ()),
)
