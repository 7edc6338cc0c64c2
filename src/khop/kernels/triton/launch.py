"""Launches of Triton kernels, a trial launch, variants compiled ahead of time, and counts of compilations.

Later runs on the machine read compiled kernels from Triton's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TritonKernel = (
    Any  # a function with @triton.jit: a launch returns the compiled kernel, or None if interpreted
)

_COUNT = 64  # numbers of the kernel that tries a launch
_compiled: dict[tuple[object, ...], Any] = {}


def launch(
    kernel: TritonKernel, programs: int, on: Tensor, /, *operands: object, **constants: object
) -> None:
    """Launch a kernel on the device of a tensor, in its current stream, without a wait.

    Products and sums are never contracted to a fused multiply-add, which would change bits. Launches are not
    bound to addresses: a recording launches nothing from Python, and batches without one are drawn ahead of
    training.
    """
    if programs == 0:
        return
    elsewhere = on.is_cuda and on.get_device() != torch.cuda.current_device()
    with torch.cuda.device_of(on) if elsewhere else nullcontext():
        # Triton's launch takes 40 microseconds to look up the compiled kernel, and a driver call per tensor:
        # more than the run time of most kernels. Addresses as integers avoid the driver calls.
        kinds, values = zip(*map(_operand, operands), strict=True)
        key = (kernel, on.get_device(), kinds, *constants.items())
        known = _compiled.get(key)
        if known is not None:
            rest = (constants[name] for name in kernel.arg_names[len(operands) :])
            known[programs, 1, 1](*values, *rest)
            return
        compiled = kernel[(programs,)](*operands, **constants, enable_fp_fusion=False)
        if compiled is not None:
            _compiled[key] = compiled


def _operand(operand: object) -> tuple[tuple[object, ...], object]:
    """Return the properties by which Triton specializes a kernel, and the value to pass.

    It specializes by type and alignment, for integers also by 1 and by multiples of 16. A CUDA tensor is
    passed by address, even if it is in pinned host memory. A CPU tensor that torch has pinned is passed
    unchanged: the driver knows its device address.
    """
    if isinstance(operand, Tensor):
        address = operand.data_ptr()
        kind = (operand.dtype, address % 16 == 0, operand.is_cuda)
        return kind, address if operand.is_cuda else operand
    if isinstance(operand, int):
        return (operand == 1, operand % 16 == 0, -(1 << 31) <= operand < 1 << 31), operand
    return (type(operand),), operand


@dataclass(frozen=True)
class Variant:
    """A kernel with the operand types and constants of a launch."""

    name: str
    kernel: TritonKernel
    types: Mapping[str, str]  # by parameter: "*i64" is a pointer to int64, "i32" a number
    constants: Mapping[str, object]  # by parameter; also operands that are None
    warps: int = 4
    vector_bits: int = 0  # minimum width of the widest loads; 0: any
    most_spilled: int = 0  # bytes (NVIDIA) or registers (AMD)


@contextmanager
def compilations_told(tell: Callable[[int], None]) -> Iterator[None]:
    """Call `tell` with the number of kernels compiled in the block so far, after each, in any thread.

    Kernels in Triton's cache on disk are not counted. `tell` is never called with Triton 3.3, which has no
    listener, or if another listener is set.
    """
    knobs = getattr(getattr(triton, "knobs", None), "compilation", None)
    if knobs is None or getattr(knobs, "listener", knobs) is not None:
        yield
        return
    count, lock = 0, Lock()

    def compiled(*, cache_hit: bool, **_: object) -> None:
        nonlocal count
        if not cache_hit:
            with lock:
                count += 1
                tell(count)

    knobs.listener = compiled
    try:
        yield
    finally:
        knobs.listener = None


@triton.jit
def copy_numbers(values: tl.tensor, out: tl.tensor, BLOCK: tl.constexpr) -> None:
    """Copy int64 numbers."""
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(values + at))


def try_kernel(device: torch.device) -> None:
    """Build and launch the kernel; RuntimeError if it does not copy. Triton may raise other errors."""
    values = torch.arange(_COUNT, device=device)
    out = torch.zeros_like(values)
    launch(copy_numbers, 1, out, values, out, BLOCK=_COUNT)
    if not torch.equal(out, values):
        raise RuntimeError("a kernel that copies numbers returned other numbers")


VARIANTS = (
    Variant(
        "copy numbers", copy_numbers, {"values": "*i64", "out": "*i64"}, {"BLOCK": _COUNT}, vector_bits=0
    ),
)
