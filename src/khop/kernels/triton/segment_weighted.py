"""Weighted sums of source rows by head, and the gradient of their weights, bitwise equal to the CPU core."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from khop.kernels.csc import Csc
from khop.kernels.memory import empty_rows
from khop.kernels.triton.launch import Variant, launch
from khop.kernels.triton.runs import RUN, add_runs, launch_sums, run_span
from khop.kernels.triton.tiles import THREADS, Tiles, row_span, tile

# kDotLanes of csrc/segment_weighted.h
DOT_LANES = {torch.float32: 16, torch.bfloat16: 16, torch.float16: 16, torch.float64: 8}


@triton.jit(do_not_specialize=["num_rows", "room"])
def weighted_sum_rows(
    x: tl.tensor,
    ids: tl.tensor,
    weights: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    sums: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    room: tl.tensor,
    OF_RUNS: tl.constexpr,
    HEADS: tl.constexpr,
    PITCH: tl.constexpr,
    OUT_PITCH: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Sum weights * x[indices] over each row's edges. With ids, source i is row ids[i] of x.

    OF_RUNS: rows are the places of runs. `sums`: see `launch_sums`.
    """
    wide = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    row, column = tile(WIDTH, ROWS, COLUMNS)
    is_column = (column < WIDTH)[None, :]
    head = column // (WIDTH // HEADS)
    if OF_RUNS:
        _, begin, degree = run_span(indptr, num_rows, row, 1)
        is_row = degree > 0
    else:
        is_row = row < num_rows
        begin, degree = row_span(indptr, row, is_row)
    count = degree if sums is None else tl.where(degree > RUN, 0, degree)
    total = tl.zeros([ROWS, COLUMNS], wide)
    for edge in range(0, tl.max(count, 0)):
        is_edge = edge < count
        is_read = is_edge[:, None] & is_column
        source = tl.load(indices + begin + edge, mask=is_edge, other=0).to(tl.int64)
        if ids is not None:
            source = tl.load(ids + source, mask=is_edge, other=0)
        value = tl.load(x + source[:, None] * PITCH + column[None, :], mask=is_read, other=0).to(wide)
        # A missing edge adds +0.0, which does not change a sum: sums begin with +0.0, so they are never -0.0.
        total += value * tl.load(
            weights + (begin + edge)[:, None] * HEADS + head[None, :], mask=is_read, other=0
        )
    if sums is not None:
        total = add_runs(total, sums, room, begin, degree, column, WIDTH)
    at = row[:, None] * OUT_PITCH + column[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=is_row[:, None] & is_column)


@triton.jit(do_not_specialize=["num_rows"])
def dots_of_edges(
    x: tl.tensor,
    gradient: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    HEADS: tl.constexpr,
    PITCH: tl.constexpr,
    GRADIENT_PITCH: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Multiply the rows at both ends of each edge, in lanes: one head of some rows per program."""
    wide = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    of_head: tl.constexpr = WIDTH // HEADS
    head = tl.program_id(0) % HEADS
    row = (tl.zeros([ROWS], tl.int64) + tl.program_id(0) // HEADS) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, LANES)
    begin, degree = row_span(indptr, row, row < num_rows)
    for edge in range(0, tl.max(degree, 0)):
        is_edge = edge < degree
        source = tl.load(indices + begin + edge, mask=is_edge, other=0).to(tl.int64)
        total = tl.zeros([ROWS, LANES], wide)
        for first in range(0, of_head, LANES):
            is_read = is_edge[:, None] & (first + lane < of_head)[None, :]
            column = (head * of_head + first + lane)[None, :]
            a = tl.load(x + source[:, None] * PITCH + column, mask=is_read, other=0).to(wide)
            b = tl.load(gradient + row[:, None] * GRADIENT_PITCH + column, mask=is_read, other=0).to(wide)
            total += a * b
        half: tl.constexpr = LANES // 2
        total = tl.sum(tl.reshape(total, [ROWS, 2, half]), 1)
        total = tl.sum(tl.reshape(total, [ROWS, 2, half // 2]), 1)
        total = tl.sum(tl.reshape(total, [ROWS, 2, half // 4]), 1)
        tl.store(out + (begin + edge) * HEADS + head, tl.sum(total, 1), mask=is_edge)


def segment_weighted_sum(x: Tensor, weights: Tensor, edges: Csc, ids: Tensor | None = None) -> Tensor:
    """Sum weights * x[indices] over each row's edges; 0 for rows without edges.

    With ids, int64 (sources), it sums rows x[ids[indices]].

    x (sources, width), float32, float64, bfloat16 or float16, rows of any pitch. weights (edges, heads),
    float32, or float64 for float64. indices are int32, in range, and may be longer than the edges of
    `indptr`.
    """
    x, weights = x if x.stride(1) == 1 else x.contiguous(), weights.contiguous()
    out = empty_rows(edges.num_rows, (x.shape[1],), x.dtype, x.device)
    if out.numel():
        tiles = Tiles.of(x.shape[1], x.element_size())
        operands = (x, ids, weights, edges.indptr, edges.indices)
        constants = {"HEADS": weights.shape[1], "PITCH": x.stride(0), **tiles.constants}
        launch_sums(weighted_sum_rows, x, operands, edges, tiles, out, constants)
    return out


def segment_weighted_sum_gradient(x: Tensor, gradient: Tensor, heads: int, edges: Csc) -> Tensor:
    """Return (edges, heads), the gradient of the weights; 0 after the edges of `indptr`."""
    x, gradient = (rows if rows.stride(1) == 1 else rows.contiguous() for rows in (x, gradient))
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    out = torch.zeros(edges.num_edges, heads, dtype=wide, device=x.device)
    if out.numel():
        lanes = DOT_LANES[x.dtype]
        rows = THREADS // lanes
        operands = (x, gradient, edges.indptr, edges.indices, out, edges.num_rows)
        pitches = {"PITCH": x.stride(0), "GRADIENT_PITCH": gradient.stride(0)}
        sizes = {"WIDTH": x.shape[1], "ROWS": rows, "LANES": lanes}
        programs = -(-edges.num_rows // rows) * heads
        launch(dots_of_edges, programs, x, *operands, HEADS=heads, **pitches, **sizes)
    return out


_POINTERS = {"indptr": "*i64", "indices": "*i32", "num_rows": "i32", "room": "i32"}


def _variants(dtype: torch.dtype, width: int, heads: int) -> tuple[Variant, ...]:
    name = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16"}[dtype]
    wide = "fp64" if name == "fp64" else "fp32"
    what = f"segment weighted sum {name} {width}, {heads} heads"
    tiles, lanes = Tiles.of(width, dtype.itemsize), DOT_LANES[dtype]
    rows = {"x": f"*{name}", "gradient": f"*{name}", **_POINTERS}
    of_sums = {**rows, "ids": "*i64", **dict.fromkeys(("weights", "sums"), f"*{wide}"), "out": f"*{name}"}
    constants = {"HEADS": heads, "PITCH": width, "OUT_PITCH": width, **tiles.constants}
    of_rows, of_runs = {"OF_RUNS": False, **constants}, {"OF_RUNS": True, "sums": None, **constants}
    return (
        Variant(what, weighted_sum_rows, of_sums, {"ids": None, **of_rows}),
        Variant(f"{what}, table", weighted_sum_rows, of_sums, of_rows),
        Variant(
            *(f"{what}, runs", weighted_sum_rows, {**of_sums, "out": f"*{wide}"}, {"ids": None, **of_runs})
        ),
        Variant(
            f"{what}, gradient of weights",
            dots_of_edges,
            {**rows, "out": f"*{wide}"},
            {
                "HEADS": heads,
                "PITCH": width,
                "GRADIENT_PITCH": width,
                "WIDTH": width,
                "ROWS": THREADS // lanes,
                "LANES": lanes,
            },
        ),
    )


VARIANTS = tuple(
    variant
    for dtype, width, heads in (
        (torch.float32, 256, 1),
        (torch.float32, 256, 4),
        (torch.bfloat16, 256, 4),
        (torch.float64, 64, 8),
    )
    for variant in _variants(dtype, width, heads)
)
