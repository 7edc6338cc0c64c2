"""Gradients of ReLU and of the bias before it, in one pass over the rows and without atomics."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from khop.kernels.triton.launch import Variant, launch

_ROWS = 128  # of a program, whose sums are one row of partial sums
_AT_ONCE = 8
_MOST_BYTES = 512  # of a program's part of a row: 256 columns of float32 need 143 registers on gfx942


@triton.jit(do_not_specialize=["num_rows"])
def masked_rows(
    gradient: tl.tensor,
    result: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    num_rows: tl.tensor,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    """Write the gradient where the result is above 0, else 0, and its sums over the rows of this program."""
    across: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    part = (tl.program_id(0) // across).to(tl.int64)
    column = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < WIDTH
    total = tl.zeros([AT_ONCE, COLUMNS], sums.dtype.element_ty)
    for step in range(ROWS // AT_ONCE):
        row = part * ROWS + step * AT_ONCE + tl.arange(0, AT_ONCE)
        at = row[:, None] * WIDTH + column[None, :]
        inside = (row < num_rows)[:, None] & is_column[None, :]
        value = tl.load(gradient + at, mask=inside, other=0)
        if result is not None:
            value = tl.where(tl.load(result + at, mask=inside, other=0) <= 0, 0, value)
            tl.store(out + at, value, mask=inside)
        total += value.to(total.dtype)
    tl.store(sums + part * WIDTH + column, tl.sum(total, 0), mask=is_column)


def relu_and_bias_gradient(gradient: Tensor, result: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the gradient before relu and the sum of its rows.

    gradient and result: (rows, width), contiguous, of the same dtype; result is the output of relu, or None
    without relu: the gradient is then returned unchanged. The sum is float32, or float64 for float64.
    """
    rows, width = gradient.shape
    parts = triton.cdiv(rows, _ROWS)
    wide = torch.float64 if gradient.dtype == torch.float64 else torch.float32
    sums = torch.empty(parts, width, dtype=wide, device=gradient.device)
    out = gradient if result is None else torch.empty_like(gradient)
    columns = _columns(width, gradient.element_size())
    operands = (gradient, result, None if result is None else out, sums, rows)
    constants = {"WIDTH": width, "COLUMNS": columns, "ROWS": _ROWS, "AT_ONCE": _AT_ONCE}
    launch(masked_rows, parts * triton.cdiv(width, columns), gradient, *operands, **constants)
    return out, sums.sum(0)


def _columns(width: int, item_bytes: int) -> int:
    return min(_MOST_BYTES // item_bytes, int(triton.next_power_of_2(width)))


VARIANTS = tuple(
    Variant(
        f"relu and bias gradient {dtype} {width}",
        masked_rows,
        {**dict.fromkeys(("gradient", "result", "out"), f"*{dtype}"), "sums": "*fp32", "num_rows": "i32"},
        {"WIDTH": width, "COLUMNS": _columns(width, item_bytes), "ROWS": _ROWS, "AT_ONCE": _AT_ONCE},
    )
    for dtype, item_bytes in (("fp32", 4), ("bf16", 2))
    for width in (64, 256)
)
