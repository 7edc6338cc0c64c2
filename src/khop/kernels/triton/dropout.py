"""Keyed dropout: the dropped values depend only on key, call and position."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from khop.kernels.triton.launch import Variant, launch
from khop.kernels.triton.words import four_words

BLOCKS = 128  # counter blocks of a program
PER_BLOCK = tl.constexpr(8)  # values per counter block: 16 bits each


@triton.jit(do_not_specialize=["call"])
def drop_values(
    x: tl.tensor,
    key: tl.tensor,
    out: tl.tensor,
    call: tl.tensor,
    count: tl.tensor,
    DROPPED: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """Write x times SCALE, or 0 where the 16 bits of a value are below DROPPED."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    keys = tl.load(key + block * 0).to(tl.uint64, bitcast=True)
    w0, w1, w2, w3 = four_words(keys, block.to(tl.uint64, bitcast=True), call, (block & 0).to(tl.uint32))
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))  # flattened: 0, 1, 2, 3
    bits = tl.reshape(tl.join(words & 0xFFFF, words >> 16), [BLOCKS * PER_BLOCK])
    at = tl.program_id(0).to(tl.int64) * BLOCKS * PER_BLOCK + tl.arange(0, BLOCKS * PER_BLOCK)
    wide = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    value = tl.load(x + at, mask=at < count, other=0).to(wide)
    # The scale is rounded to the type of x first, as in the reference.
    scale = tl.full([BLOCKS * PER_BLOCK], SCALE, wide).to(x.dtype.element_ty).to(wide)
    value *= tl.where(bits.to(tl.int32) < DROPPED, 0.0, scale)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=at < count)


def dropped(x: Tensor, key: Tensor, call: int, steps: int, scale: float) -> Tensor:
    """Return x times `scale`, with 0 for values whose 16 bits are below `steps`.

    key: int64 (1) on the device of x; call: a number below 2^31.
    """
    x = x.contiguous()
    out = torch.empty_like(x)
    programs = triton.cdiv(x.numel(), BLOCKS * PER_BLOCK.value)
    launch(drop_values, programs, x, x, key, out, call, x.numel(), DROPPED=steps, SCALE=scale, BLOCKS=BLOCKS)
    return out


VARIANTS = tuple(
    Variant(
        f"dropout {dtype}",
        drop_values,
        {"x": f"*{dtype}", "key": "*i64", "out": f"*{dtype}", "call": "i32", "count": "i32"},
        {"DROPPED": 13107, "SCALE": 65536 / (65536 - 13107), "BLOCKS": BLOCKS},
    )
    for dtype in ("fp32", "bf16", "fp64")
)
