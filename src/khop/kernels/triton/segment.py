"""Sums and means of source rows, without atomics, bitwise equal to the CPU core."""

from __future__ import annotations

from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from khop.kernels.csc import Csc
from khop.kernels.memory import accessible_width, empty_rows, padded_pitch
from khop.kernels.triton.launch import Variant
from khop.kernels.triton.runs import RUN, add_runs, launch_sums, run_span
from khop.kernels.triton.tiles import Tiles, row_span, tile

AHEAD = 4  # source rows that are loaded before the first of them is added


@triton.jit(do_not_specialize=["num_rows", "room"])
def sum_rows(
    x: tl.tensor,
    ids: tl.tensor,
    shares: tl.tensor,
    indptr: tl.tensor,
    indices: tl.tensor,
    sums: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    room: tl.tensor,
    OF_RUNS: tl.constexpr,
    MEAN: tl.constexpr,
    PITCH: tl.constexpr,
    OUT_PITCH: tl.constexpr,
    AHEAD: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Sum x[indices] over each row's edges; with shares, each times the share of its source.

    With ids, source i is row ids[i] of x. OF_RUNS: rows are the places of runs. `sums`: see `launch_sums`.
    """
    wide = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    row, column = tile(WIDTH, ROWS, COLUMNS)
    is_column = (column < WIDTH)[None, :]
    if OF_RUNS:
        _, begin, degree = run_span(indptr, num_rows, row, 1)
        is_row = degree > 0
    else:
        is_row = row < num_rows
        begin, degree = row_span(indptr, row, is_row)
    count = degree if sums is None else tl.where(degree > RUN, 0, degree)
    total = tl.zeros([ROWS, COLUMNS], wide)
    for edge in range(0, tl.max(count, 0), AHEAD):
        values = ()
        for step in tl.static_range(AHEAD):
            is_edge = edge + step < count
            source = tl.load(indices + begin + edge + step, mask=is_edge, other=0).to(tl.int64)
            if ids is not None:
                source = tl.load(ids + source, mask=is_edge, other=0)
            at = source[:, None] * PITCH + column[None, :]
            value = tl.load(x + at, mask=is_edge[:, None] & is_column, other=0).to(wide)
            if shares is not None:
                value *= tl.load(shares + source, mask=is_edge, other=0)[:, None]
            values += (value,)  # type: ignore[assignment]
        # A missing edge adds +0.0, which does not change a sum: sums begin with +0.0, so they are never -0.0.
        for step in tl.static_range(AHEAD):
            total += values[step]
    if sums is not None:
        total = add_runs(total, sums, room, begin, degree, column, WIDTH)
    if MEAN:
        divisor = tl.maximum(degree, 1).to(wide)[:, None] + tl.zeros([ROWS, COLUMNS], wide)
        total = total / divisor if wide == tl.float64 else tl.div_rn(total, divisor)
    at = row[:, None] * OUT_PITCH + column[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=is_row[:, None] & is_column)


def segment_sum(x: Tensor, edges: Csc, ids: Tensor | None = None) -> Tensor:
    """Sum x[indices] over each row's edges; 0 for rows without edges.

    With ids, int64 (sources), it sums rows x[ids[indices]].

    x (sources, width), float32, float64, bfloat16 or float16, rows of any pitch. indices are int32, in range,
    and may be longer than the edges of `indptr`.
    """
    return _launched(x, None, edges, ids, is_mean=False)


def segment_mean(x: Tensor, edges: Csc, ids: Tensor | None = None) -> Tensor:
    """Divide `segment_sum` by the row's number of edges; 0 for rows without edges."""
    return _launched(x, None, edges, ids, is_mean=True)


def segment_mean_gradient(gradient: Tensor, indptr: Tensor, transposed: Csc) -> Tensor:
    """Return the gradient of `segment_mean` with respect to x; `indptr` is that of its edges."""
    wide = torch.float64 if gradient.dtype == torch.float64 else torch.float32
    shares = indptr.diff().to(wide).reciprocal_()  # infinite for rows without edges, but never read
    return _launched(gradient, shares, transposed, None, is_mean=False)


def _launched(x: Tensor, shares: Tensor | None, edges: Csc, ids: Tensor | None, *, is_mean: bool) -> Tensor:
    x = x if x.stride(1) == 1 else x.contiguous()
    out = empty_rows(edges.num_rows, (x.shape[1],), x.dtype, x.device)
    if out.numel():
        tiles = Tiles.of(min(accessible_width(x), accessible_width(out)), x.element_size())
        operands = (x, ids, shares, edges.indptr, edges.indices)
        constants = {"MEAN": False, "PITCH": x.stride(0), "AHEAD": AHEAD, **tiles.constants}
        launch_sums(sum_rows, x, operands, edges, tiles, out, constants, MEAN=is_mean)
    return out


def _variant(
    dtype: torch.dtype,
    width: int,
    is_mean: bool,
    of: Literal["rows", "gradient", "table"],
    step: Literal["", "runs", "few edges"] = "",
) -> Variant:
    name = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16"}[dtype]
    wide = "*fp64" if name == "fp64" else "*fp32"
    pitch, has_runs = padded_pitch(width, dtype), step == ""
    named = "" if of == "rows" else f", {of}"
    return Variant(
        f"segment {'mean' if is_mean else 'sum'} {name} {width}{named}" + (f", {step}" if step else ""),
        sum_rows,
        {
            **{"x": f"*{name}", "out": wide if step == "runs" else f"*{name}"},
            **dict.fromkeys(("shares", "sums"), wide),
            **dict.fromkeys(("indptr", "ids"), "*i64"),
            "indices": "*i32",
            **dict.fromkeys(("num_rows", "room"), "i32"),
        },
        {
            **({} if of == "gradient" else {"shares": None}),
            **({} if of == "table" else {"ids": None}),
            **({} if has_runs else {"sums": None}),
            **{
                "OF_RUNS": step == "runs",
                "MEAN": is_mean,
                "PITCH": pitch,
                "OUT_PITCH": pitch,
                "AHEAD": AHEAD,
            },
            **Tiles.of(pitch, dtype.itemsize).constants,
        },
        vector_bits=128,
    )


_WIDTHS = ((torch.float32, 256), (torch.float32, 100), (torch.bfloat16, 256), (torch.bfloat16, 100))
VARIANTS = (
    *(_variant(dtype, width, is_mean, "rows") for dtype, width in _WIDTHS for is_mean in (True, False)),
    *(_variant(dtype, width, False, "gradient") for dtype, width in _WIDTHS),
    *(_variant(dtype, width, False, "gradient", "runs") for dtype, width in _WIDTHS),
    *(_variant(dtype, width, True, "table") for dtype, width in _WIDTHS),
    _variant(torch.float32, 100, False, "table"),
    _variant(torch.float32, 100, True, "rows", "few edges"),
    _variant(torch.bfloat16, 256, False, "table", "runs"),
    _variant(torch.float64, 100, True, "rows"),
    _variant(torch.float64, 100, False, "gradient"),
    _variant(torch.float64, 100, False, "gradient", "runs"),
)
