"""Launches of kernels, and the list of their variants that are compiled ahead of time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Kernel(Protocol):
    """A function with @triton.jit."""

    arg_names: list[str]

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]: ...


def launch(kernel: Kernel, programs: int, on: Tensor, /, *operands: object, **constants: object) -> None:
    """Start a kernel on the device of a tensor, in its current stream; nothing waits.

    Products and sums are never contracted to a fused multiply-add, which would change bits.
    """
    if programs == 0:
        return
    with torch.cuda.device_of(on):  # type: ignore[no-untyped-call]
        kernel[(programs,)](*operands, **constants, enable_fp_fusion=False)


@dataclass(frozen=True)
class Variant:
    """A kernel with the types of its operands and its constants, as some launch uses it."""

    name: str
    kernel: Kernel
    types: Mapping[str, str]  # by parameter: "*i64" is a pointer to int64, "i32" a number
    constants: Mapping[str, object]  # by parameter; operands that are None too
    warps: int = 4
    vector_bits: int = 0  # the widest loads must have at least this width; 0: any
    divides: bool = False  # a correctly rounded division contracts inside; elsewhere nothing may
