"""Choice between native core, Triton kernels and references, by the device of the operands.

Other code inspects a device only to place or copy tensors, or to skip checks that would synchronize with it.
"""

from __future__ import annotations

import re
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from functools import cache
from pathlib import Path
from subprocess import SubprocessError

import torch

from khop.kernels.card import CardAnswers, card_key, triton_text

LEAST_CAPABILITY = (8, 0)
LEAST_TRITON = (3, 3)  # comes with torch 2.7; earlier versions cannot compile tuples of registers
BUILDS = "a kernel is built"  # name of an answer; see CardAnswers


class Engine(Enum):
    """An implementation of the operations; all give the same bits."""

    NATIVE = "native"  # the compiled core, on the CPU
    TRITON = "triton"  # kernels on a GPU
    TORCH = "torch"  # the references, on any device


_forced: Engine | None = None
_distrusted: dict[int | None, str] = {}  # by index of a GPU: why its kernels must not be used


@cache
def engine(device: torch.device) -> Engine:
    """Return the engine for tensors on a device, the same in every call until `distrust`.

    A GPU that the kernels do not support uses the references in torch; the first such call of a process
    warns with the reason.
    """
    if _forced is not None:
        return _forced
    if device.type == "cpu":
        return Engine.NATIVE
    if device.type != "cuda":
        return Engine.TORCH
    reason = _distrusted.get(device.index) or why_no_kernels(device.index)
    if reason is None:
        return Engine.TRITON
    _warn(f"no kernels for {device}: {reason}; draws and gathers on it use torch, which is slower")
    return Engine.TORCH


def distrust(device: torch.device, reason: str) -> None:
    """Use torch instead of kernels on a GPU of this process from now on."""
    _distrusted[device.index] = reason
    engine.cache_clear()


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
    """Return the reason why kernels cannot run on a GPU of this process; None if they can.

    The first call on a card builds a small kernel and caches the result for the user. ROCm devices use the
    same calls and have no minimum compute capability.
    """
    found = triton_version()
    if found is None:
        return "Triton is not installed; install a torch with CUDA, 2.7 or later"
    if found < LEAST_TRITON:
        return f"Triton {found[0]}.{found[1]} is too old; install torch 2.7 or later"
    if not torch.cuda.is_available():
        return "torch finds no usable GPU; check the driver by `nvidia-smi`"
    if torch.version.hip is None and (too_old := why_too_old(torch.cuda.get_device_capability(index))):
        return too_old
    answers = CardAnswers.of(card_key(index))
    if answers.read().get(BUILDS) == "":
        return None
    reason = why_not_built(torch.device("cuda" if index is None else f"cuda:{index}"))
    if reason is None:
        answers.keep({BUILDS: ""})
    return reason


def why_too_old(capability: tuple[int, int]) -> str | None:
    """Return the reason why kernels cannot run on an NVIDIA card; None if they can."""
    if capability < LEAST_CAPABILITY:
        return f"compute capability {capability[0]}.{capability[1]}, and 8.0 (A100) is the least"
    return None


def why_not_built(device: torch.device) -> str | None:
    """Build and start a small kernel; return the reason if that fails, with the remedy."""
    from khop.kernels.triton.launch import try_kernel

    try:
        try_kernel(device)
    except torch.OutOfMemoryError:
        raise
    except kernel_errors() as error:
        return reason_of(error)
    return None


def kernel_errors() -> tuple[type[Exception], ...]:
    """Return the errors that Triton raises if it cannot build or start a kernel."""
    from triton.errors import TritonError

    return RuntimeError, OSError, ImportError, SubprocessError, TritonError


def reason_of(error: Exception) -> str:
    """Return why Triton could not build a kernel, and what to do."""
    if "Failed to find C compiler" in str(error):
        return "Triton finds no C compiler; install gcc (Debian: apt install gcc), or name one in CC"
    if isinstance(error, SubprocessError) and not Path(sysconfig.get_path("include"), "Python.h").exists():
        return (
            "Triton needs Python.h, which is missing; install Python's headers (Debian: apt install "
            "python3-dev)"
        )
    if isinstance(error, OSError) and error.filename is not None:
        return (
            f"Triton cannot use {error.filename}: {error.strerror}; let TRITON_CACHE_DIR name a folder that "
            "can be written"
        )
    first = str(error).strip().partition("\n")[0]
    return f"a kernel could not be built: {type(error).__name__}: {first}"


def triton_version() -> tuple[int, int] | None:
    """Return major and minor version of Triton without importing it; None if it is not installed."""
    parts = re.match(r"(\d+)\.(\d+)", triton_text() or "")
    return None if parts is None else (int(parts[1]), int(parts[2]))


@cache
def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)
