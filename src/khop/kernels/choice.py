"""The engine of an operation: the one place that chooses between core, kernels and references by the device.

Other code looks at a device to place tensors, to copy them, or to leave out checks that would wait for it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import torch

LEAST_CAPABILITY = (8, 0)
LEAST_TRITON = (3, 3)  # comes with torch 2.7; earlier ones cannot compile tuples of registers


class Engine(Enum):
    """An implementation of the operations; all give the same bits."""

    NATIVE = "native"  # the compiled core, on the CPU
    TRITON = "triton"  # kernels on a GPU
    TORCH = "torch"  # the references, on any device


_forced: Engine | None = None


@cache
def engine(device: torch.device) -> Engine:
    """Return the engine for tensors on a device, the same in every call.

    A GPU without support by the kernels uses the references in torch; the first such call of a process warns
    with the reason.
    """
    if _forced is not None:
        return _forced
    if device.type == "cpu":
        return Engine.NATIVE
    if device.type != "cuda":
        return Engine.TORCH
    reason = why_no_kernels(device.index)
    if reason is None:
        return Engine.TRITON
    _warn(f"no kernels for {device}: {reason}; draws and gathers on it use torch, which is slower")
    return Engine.TORCH


@contextmanager
def forcing(chosen: Engine) -> Iterator[None]:
    """Use one engine for every device while the block runs, in all threads: for tests and comparisons."""
    global _forced
    before, _forced = _forced, chosen
    engine.cache_clear()
    try:
        yield
    finally:
        _forced = before
        engine.cache_clear()


@cache
def why_no_kernels(index: int | None = None) -> str | None:
    """Return the reason why kernels cannot run on a GPU of this process; None: they can.

    ROCm devices answer to the same calls and have no lower limit.
    """
    found = triton_version()
    if found is None:
        return "Triton is not installed; install a torch with CUDA, 2.7 or later"
    if found < LEAST_TRITON:
        return f"Triton {found[0]}.{found[1]} is too old; install torch 2.7 or later"
    if not torch.cuda.is_available():
        return "torch finds no usable GPU; check the driver by `nvidia-smi`"
    if torch.version.hip is not None:
        return None
    return why_too_old(torch.cuda.get_device_capability(index))


def why_too_old(capability: tuple[int, int]) -> str | None:
    """Return the reason why kernels cannot run on a card of NVIDIA; None: they can."""
    if capability < LEAST_CAPABILITY:
        return f"compute capability {capability[0]}.{capability[1]}, and 8.0 (A100) is the least"
    return None


def triton_version() -> tuple[int, int] | None:
    """Return major and minor version of the installed Triton without its import; None: there is none."""
    for package in ("triton", "pytorch-triton", "pytorch-triton-rocm"):
        try:
            parts = re.match(r"(\d+)\.(\d+)", version(package))
        except PackageNotFoundError:
            continue
        return None if parts is None else (int(parts[1]), int(parts[2]))
    return None


@cache
def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)
