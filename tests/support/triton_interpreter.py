"""Corrections of Triton's interpreter, which runs kernels on the CPU: for tests alone.

It cuts float32 off where a device rounds to bfloat16, takes 64-bit products one element at a time, and
converts numbers to Python's in a way that NumPy 2.4 refuses. That of Triton 3.3 has no type for one bit.
It looks for the functions of triton.language that it has to replace at each launch and at each call of a
function by a kernel, which takes a quarter of its time: they are replaced once, for the life of the process.
Kernels of several threads run one by one, as it has one grid.
"""

from __future__ import annotations

from threading import RLock
from types import SimpleNamespace

import numpy as np
import triton.language as tl
from numpy.typing import ArrayLike, NDArray
from triton.runtime import interpreter

ONE_AT_A_TIME = RLock()
WORD, BITS = np.uint64(0xFFFFFFFF), np.uint64(32)


def high_product(a: ArrayLike, b: ArrayLike) -> NDArray[np.uint64]:
    """The upper halves of 128-bit products, by four products of words."""
    a, b = np.asarray(a).astype(np.uint64), np.asarray(b).astype(np.uint64)
    low_a, high_a, low_b, high_b = a & WORD, a >> BITS, b & WORD, b >> BITS
    one, other = high_a * low_b, low_a * high_b
    carry = ((low_a * low_b >> BITS) + (one & WORD) + (other & WORD)) >> BITS
    return high_a * high_b + (one >> BITS) + (other >> BITS) + carry


def rounded_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bits of the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    nearest = (bits + (((bits >> 16) & 1) + 0x7FFF).astype(np.uint32)) >> 16
    return np.where(np.isnan(values), bits >> 16 | 0x40, nearest).astype(np.uint16)


def correct() -> None:
    """Correct the interpreter of this process; once is enough."""
    builder = interpreter.InterpreterBuilder
    given = builder.cast_impl
    if getattr(given, "is_corrected", False):
        return

    def cast_impl(self: object, source: interpreter.TensorHandle, to: tl.dtype) -> interpreter.TensorHandle:
        if source.dtype.scalar == tl.float32 and to.scalar == tl.bfloat16:
            return interpreter.TensorHandle(rounded_to_bfloat16(source.data), to.scalar)
        return given(self, source, to)

    cast_impl.is_corrected = True  # type: ignore[attr-defined]
    for name, value in list(vars(builder).items()):
        if value is given:
            setattr(builder, name, cast_impl)
    builder.create_fp_trunc = cast_impl
    interpreter.np_umulhi_u64 = high_product
    if not hasattr(builder, "get_int1_ty"):  # Triton 3.3
        builder.get_int1_ty = lambda self: tl.int1
    given_patch = interpreter._patch_lang_tensor

    def patch_lang_tensor(tensor: type[tl.tensor], *scope: object) -> None:
        given_patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = patch_lang_tensor
    patch = interpreter._patch_lang
    nothing_to_restore = SimpleNamespace(restore=lambda: None)
    replaced: list[object] = []

    def patch_once(function: object) -> SimpleNamespace:
        if not replaced:
            replaced.append(patch(SimpleNamespace(__globals__={"tl": tl, "core": tl.core})))
        return nothing_to_restore

    interpreter._patch_lang = patch_once
    executor = interpreter.GridExecutor
    launch = executor.__call__

    def launch_alone(self: object, *operands: object, **named: object) -> None:
        with ONE_AT_A_TIME:
            launch(self, *operands, **named)

    executor.__call__ = launch_alone
