"""Softmax over the in-edges of each destination, and its gradient, bitwise equal to the CPU core."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from khop.kernels.memory import LOAD_BYTES
from khop.kernels.triton.launch import TritonKernel, Variant, launch
from khop.kernels.triton.tiles import Tiles, row_span, tile

LOG2_E = tl.constexpr(1.4426950408889634)
# ln 2 in two parts, and the score below which exp is subnormal, as in csrc/segment_softmax.cpp.
HIGH_32, LOW_32 = tl.constexpr(float.fromhex("0x1.62e4p-1")), tl.constexpr(float.fromhex("0x1.7f7d1cp-20"))
HIGH_64 = tl.constexpr(float.fromhex("0x1.62e42fee00000p-1"))
LOW_64 = tl.constexpr(float.fromhex("0x1.a39ef35793c76p-33"))
LOWEST_32, LOWEST_64 = tl.constexpr(-87.0), tl.constexpr(-708.0)


@triton.jit
def exp_negative(x: tl.tensor) -> tl.tensor:
    """Return exp of nonpositive float32 or float64 values, by the same steps as the core."""
    if x.dtype == tl.float64:
        shifted = x * LOG2_E + 6755399441055744.0  # 1.5 * 2^52: leaves the rounded exponent in the low bits
        exponent = shifted - 6755399441055744.0
        rest = (x - exponent * HIGH_64) - exponent * LOW_64
        series = x * 0.0 + 1.0
        for k in tl.static_range(13, 0, -1):
            series = series * rest * (1.0 / k) + 1.0
        power = ((shifted.to(tl.int64, bitcast=True) << 52) + 0x3FF0000000000000).to(tl.float64, bitcast=True)
        return tl.where(x < LOWEST_64, 0.0, series * power)
    else:
        shifted = x * LOG2_E + 12582912.0  # 1.5 * 2^23
        exponent = shifted - 12582912.0
        rest = (x - exponent * HIGH_32) - exponent * LOW_32
        series = x * 0.0 + 1.0
        for k in tl.static_range(7, 0, -1):
            series = series * rest * (1.0 / k) + 1.0
        power = ((shifted.to(tl.int32, bitcast=True) << 23) + 0x3F800000).to(tl.float32, bitcast=True)
        return tl.where(x < LOWEST_32, 0.0, series * power)


@triton.jit(do_not_specialize=["num_rows"])
def softmax_rows(
    scores: tl.tensor,
    indptr: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Normalize exp of the scores (edges, WIDTH) over each row's edges."""
    wide = tl.float64 if scores.dtype.element_ty == tl.float64 else tl.float32
    row, head = tile(WIDTH, ROWS, COLUMNS)
    is_head = (head < WIDTH)[None, :]
    begin, degree = row_span(indptr, row, row < num_rows)
    longest = tl.max(degree, 0)
    largest = tl.full([ROWS, COLUMNS], float("-inf"), wide)
    for edge in range(0, longest):
        is_edge = (edge < degree)[:, None] & is_head
        at = (begin + edge)[:, None] * WIDTH + head[None, :]
        score = tl.load(scores + at, mask=is_edge, other=float("-inf")).to(wide)
        largest = tl.where(score > largest, score, largest)
    total = tl.zeros([ROWS, COLUMNS], wide)
    for edge in range(0, longest):
        is_edge = (edge < degree)[:, None] & is_head
        at = (begin + edge)[:, None] * WIDTH + head[None, :]
        score = tl.load(scores + at, mask=is_edge, other=0).to(wide)
        total += tl.where(is_edge, exp_negative(score - largest), 0.0)
    for edge in range(0, longest):
        is_edge = (edge < degree)[:, None] & is_head
        at = (begin + edge)[:, None] * WIDTH + head[None, :]
        power = exp_negative(tl.load(scores + at, mask=is_edge, other=0).to(wide) - largest)
        result = power / total if wide == tl.float64 else tl.div_rn(power, total)
        tl.store(out + at, result.to(out.dtype.element_ty), mask=is_edge)


@triton.jit(do_not_specialize=["num_rows"])
def softmax_rows_gradient(
    result: tl.tensor,
    gradient: tl.tensor,
    indptr: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Return result * (gradient - sum of result * gradient over the row's edges)."""
    wide = tl.float64 if result.dtype.element_ty == tl.float64 else tl.float32
    row, head = tile(WIDTH, ROWS, COLUMNS)
    is_head = (head < WIDTH)[None, :]
    begin, degree = row_span(indptr, row, row < num_rows)
    longest = tl.max(degree, 0)
    total = tl.zeros([ROWS, COLUMNS], wide)
    for edge in range(0, longest):
        is_edge = (edge < degree)[:, None] & is_head
        at = (begin + edge)[:, None] * WIDTH + head[None, :]
        of_edge = tl.load(result + at, mask=is_edge, other=0).to(wide)
        total += of_edge * tl.load(gradient + at, mask=is_edge, other=0).to(wide)
    for edge in range(0, longest):
        is_edge = (edge < degree)[:, None] & is_head
        at = (begin + edge)[:, None] * WIDTH + head[None, :]
        of_edge = tl.load(result + at, mask=is_edge, other=0).to(wide)
        change = of_edge * (tl.load(gradient + at, mask=is_edge, other=0).to(wide) - total)
        tl.store(out + at, change.to(out.dtype.element_ty), mask=is_edge)


def segment_softmax(scores: Tensor, indptr: Tensor) -> Tensor:
    """Normalize every row's contiguous scores (edges) or (edges, heads) to sum 1, each head separately.

    Scores after the edges of `indptr` give 0.
    """
    out = torch.zeros_like(scores)
    if scores.numel():
        tiles, rows = _tiles(scores), indptr.numel() - 1
        launch(softmax_rows, tiles.programs(rows), scores, scores, indptr, out, rows, **tiles.constants)
    return out


def segment_softmax_gradient(result: Tensor, gradient: Tensor, indptr: Tensor) -> Tensor:
    """Return the gradient of `segment_softmax` with respect to the scores; both tensors are contiguous."""
    out = torch.zeros_like(result)
    if result.numel():
        tiles, rows = _tiles(result), indptr.numel() - 1
        operands = (result, gradient, indptr, out, rows)
        launch(softmax_rows_gradient, tiles.programs(rows), result, *operands, **tiles.constants)
    return out


def _tiles(scores: Tensor) -> Tiles:
    """Return tiles with a row and a head per thread: only the edges of a row are sequential."""
    return Tiles.of(scores.shape[1] if scores.dim() == 2 else 1, LOAD_BYTES)


def _variant(kernel: TritonKernel, dtype: str, heads: int) -> Variant:
    return Variant(
        f"segment softmax {dtype} {heads}" + (", gradient" if kernel is softmax_rows_gradient else ""),
        kernel,
        {
            **dict.fromkeys(("scores", "result", "gradient", "out"), f"*{dtype}"),
            "indptr": "*i64",
            "num_rows": "i32",
        },
        Tiles.of(heads, LOAD_BYTES).constants,
    )


VARIANTS = tuple(
    _variant(kernel, dtype, heads)
    for dtype, heads in (("fp32", 1), ("fp32", 4), ("bf16", 4), ("fp64", 4))
    for kernel in (softmax_rows, softmax_rows_gradient)
)
