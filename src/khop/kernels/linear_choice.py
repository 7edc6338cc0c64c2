"""Choice of the implementation of layers, by processor and library or by the caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from khop.kernels.linear_blocks import Blocks, Library, has_onednn

FEW_ROWS = 1024  # torch computes layers with fewer rows
_ROWS = 2048  # per thread and block
CPU_FACTS = Path("/proc/cpuinfo")
_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}  # the last one is for ARM


@cache
def has_bfloat16_instructions(facts: Path = CPU_FACTS) -> bool:
    """Return True if the processor has instructions to multiply bfloat16; False if unknown."""
    try:
        lines = facts.read_text().splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return bool(_BFLOAT16 & set(flags.split()))


def way_of_rule(dtype: torch.dtype) -> Blocks | None:
    """Return the blocks for layers of a dtype on this processor; None: by torch.

    benchmarks/layers.py compares all settings: with AVX-512, a step in blocks of oneDNN takes 0.55 of the
    time of torch's layers; without it, none is more than 2 % faster than torch in float32.
    """
    library: Library = "onednn" if is_onednn_faster() else "blas"
    if dtype == torch.float64:
        return Blocks("blas", _ROWS)
    if dtype == torch.float32 and library == "onednn":
        return Blocks(library, _ROWS)
    if dtype == torch.bfloat16 and not has_bfloat16_instructions():
        return Blocks(library, _ROWS, in_float32=True)
    return None


def is_onednn_faster() -> bool:
    """Return True if oneDNN multiplies float32 faster than MKL, which ignores AVX-512 on some processors."""
    return has_onednn() and torch.backends.cpu.get_cpu_capability().startswith("AVX512")


class LinearChoices:
    """The implementations of layers in this process, by dtype."""

    def __init__(self) -> None:
        self._fixed: Blocks | None = None
        self.is_fixed = False  # by the caller

    def blocks(self, dtype: torch.dtype) -> Blocks | None:
        """Return the blocks for layers of a dtype; None: by torch."""
        if not self.is_fixed:
            return way_of_rule(dtype)
        return self._fixed if self._fixed is not None and self._fixed.can_compute(dtype) else None

    def fix(self, blocks: Blocks | None) -> None:
        """Compute all layers of this process with these blocks; None: by torch.

        Torch computes dtypes that the blocks do not support.
        """
        self._fixed, self.is_fixed = blocks, True

    @property
    def setting(self) -> str:
        """The fixed setting as text."""
        return str(self._fixed or "torch") if self.is_fixed else "by the processor"

    @contextmanager
    def fixed(self, blocks: Blocks | None) -> Iterator[None]:
        """Fix the setting within a `with` block."""
        before = self._fixed, self.is_fixed
        self.fix(blocks)
        try:
            yield
        finally:
            self._fixed, self.is_fixed = before


CHOICES = LinearChoices()  # of this process


def fixed_by(text: str) -> Blocks | None:
    """Parse a setting: torch, blas:2048, onednn:4096, or blas-float32:2048 for bfloat16 rows."""
    library, _, rows = text.partition(":")
    if text == "torch":
        return None
    name = library.removesuffix("-float32")
    if name not in ("blas", "onednn") or not rows.isdecimal():
        raise ValueError(f"{text!r}: must be torch, or a library and a number of rows as in blas:2048")
    return Blocks("blas" if name == "blas" else "onednn", int(rows), library != name)
