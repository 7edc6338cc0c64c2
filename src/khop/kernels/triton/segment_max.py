"""Maxima of source rows over in-edges, and their gradient, bitwise equal to the CPU core."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from khop.kernels.csc import Csc
from khop.kernels.memory import empty_rows
from khop.kernels.triton.launch import Variant, launch
from khop.kernels.triton.runs import RUN, add_runs, launch_sums, run_span
from khop.kernels.triton.tiles import Tiles, row_span, tile


@triton.jit(do_not_specialize=["num_rows"])
def max_rows(
    x: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    out: tl.tensor,
    winners: tl.tensor,
    num_rows: tl.tensor,
    PITCH: tl.constexpr,
    OUT_PITCH: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Take the largest of x[indices] over each row's edges, by column, and its source."""
    wide = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    row, column = tile(WIDTH, ROWS, COLUMNS)
    is_row, is_column = row < num_rows, (column < WIDTH)[None, :]
    begin, degree = row_span(indptr, row, is_row)
    largest = tl.zeros([ROWS, COLUMNS], wide)
    winner = tl.full([ROWS, COLUMNS], -1, tl.int32)
    for edge in range(0, tl.max(degree, 0)):
        is_edge = edge < degree
        source = tl.load(indices + begin + edge, mask=is_edge, other=0)
        at = source.to(tl.int64)[:, None] * PITCH + column[None, :]
        value = tl.load(x + at, mask=is_edge[:, None] & is_column, other=0).to(wide)
        is_larger = (winner < 0) | (value > largest) | ((value != value) & (largest == largest))
        is_larger = is_edge[:, None] & is_larger
        largest = tl.where(is_larger, value, largest)
        winner = tl.where(is_larger, source[:, None], winner)
    is_inside = is_row[:, None] & is_column
    at = row[:, None] * OUT_PITCH + column[None, :]
    tl.store(out + at, largest.to(out.dtype.element_ty), mask=is_inside)
    if winners is not None:
        tl.store(winners + at, winner, mask=is_inside)


@triton.jit(do_not_specialize=["num_sources", "room"])
def max_rows_gradient(
    gradient: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    winners: tl.tensor,
    sums: tl.tensor,
    out: tl.tensor,
    num_sources: tl.tensor,
    room: tl.tensor,
    OF_RUNS: tl.constexpr,
    PITCH: tl.constexpr,
    WINNER_PITCH: tl.constexpr,
    OUT_PITCH: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Sum for each source the gradients of the rows where it won; indptr and indices are transposed edges.

    OF_RUNS: rows of `out` are the places of runs. `sums`: see `launch_sums`.
    """
    wide = tl.float64 if gradient.dtype.element_ty == tl.float64 else tl.float32
    to, column = tile(WIDTH, ROWS, COLUMNS)
    is_column = (column < WIDTH)[None, :]
    if OF_RUNS:
        source, begin, degree = run_span(indptr, num_sources, to, 1)
        is_source = degree > 0
        is_later = is_source & (begin > tl.load(indptr + source, mask=is_source, other=0))
        previous = tl.load(indices + begin - 1, mask=is_later, other=-1)
    else:
        source, is_source = to, to < num_sources
        begin, degree = row_span(indptr, source, is_source)
        previous = tl.full([ROWS], -1, tl.int32)
    count = degree if sums is None else tl.where(degree > RUN, 0, degree)
    total = tl.zeros([ROWS, COLUMNS], wide)
    for edge in range(0, tl.max(count, 0)):
        is_edge = edge < count
        row = tl.load(indices + begin + edge, mask=is_edge, other=0)
        # Only one of parallel edges has won.
        is_read = (is_edge & (row != previous))[:, None] & is_column
        wide_row = row.to(tl.int64)[:, None]
        winner = tl.load(winners + wide_row * WINNER_PITCH + column[None, :], mask=is_read, other=-1)
        has_won = is_read & (winner == source[:, None])
        # All columns are read: a mask per column would forbid wide loads.
        value = tl.load(gradient + wide_row * PITCH + column[None, :], mask=is_read, other=0).to(wide)
        total += tl.where(has_won, value, 0)
        previous = row
    if sums is not None:
        total = add_runs(total, sums, room, begin, degree, column, WIDTH)
    at = to[:, None] * OUT_PITCH + column[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=is_source[:, None] & is_column)


def segment_max(x: Tensor, edges: Csc, *, with_winners: bool) -> tuple[Tensor, Tensor | None]:
    """Return the largest values, 0 without edges, and on request the source of each, int32, -1 without edges.

    The arguments are as for `khop.kernels.triton.segment.segment_sum`. For equal values, the first edge wins.
    """
    x = x if x.stride(1) == 1 else x.contiguous()
    out = empty_rows(edges.num_rows, (x.shape[1],), x.dtype, x.device)
    winners = None
    if with_winners:
        winners = torch.empty_strided(out.shape, out.stride(), dtype=torch.int32, device=x.device)
    if out.numel():
        tiles = Tiles.of(x.shape[1], x.element_size())
        operands = (x, edges.indptr, edges.indices, out, winners, edges.num_rows)
        constants = {"PITCH": x.stride(0), "OUT_PITCH": out.stride(0), **tiles.constants}
        launch(max_rows, tiles.programs(edges.num_rows), x, *operands, **constants)
    return out, winners


def segment_max_gradient(gradient: Tensor, winners: Tensor, transposed: Csc) -> Tensor:
    """Return the gradient of `segment_max` with respect to x: it goes to the winner."""
    gradient = gradient if gradient.stride(1) == 1 else gradient.contiguous()
    out = empty_rows(transposed.num_rows, (gradient.shape[1],), gradient.dtype, gradient.device)
    if out.numel():
        tiles = Tiles.of(gradient.shape[1], gradient.element_size())
        operands = (gradient, transposed.indptr, transposed.indices, winners)
        constants = {"PITCH": gradient.stride(0), "WINNER_PITCH": winners.stride(0), **tiles.constants}
        launch_sums(max_rows_gradient, gradient, operands, transposed, tiles, out, constants)
    return out


_TYPES = {
    **{"indptr": "*i64", "indices": "*i32", "winners": "*i32"},
    **dict.fromkeys(("num_rows", "num_sources", "room"), "i32"),
}


def _variants(dtype: torch.dtype, width: int) -> tuple[Variant, ...]:
    name = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16"}[dtype]
    wide, what = "*fp64" if name == "fp64" else "*fp32", f"segment max {name} {width}"
    types = {**dict.fromkeys(("x", "gradient", "out"), f"*{name}"), "sums": wide, **_TYPES}
    constants = {"PITCH": width, "OUT_PITCH": width, **Tiles.of(width, dtype.itemsize).constants}
    of_rows, of_runs = ({"OF_RUNS": each, "WINNER_PITCH": width, **constants} for each in (False, True))
    return (
        Variant(what, max_rows, types, constants, vector_bits=128),
        Variant(f"{what}, gradient", max_rows_gradient, types, of_rows, vector_bits=128),
        Variant(
            f"{what}, gradient, runs",
            max_rows_gradient,
            {**types, "out": wide},
            {"sums": None, **of_runs},
            vector_bits=128,
        ),
    )


VARIANTS = tuple(
    variant
    for dtype, width in (
        (torch.float32, 256),
        (torch.bfloat16, 256),
        (torch.float32, 64),
        (torch.float64, 64),
    )
    for variant in _variants(dtype, width)
)
