"""The way to compute layers: measured once per machine and recorded, or fixed by the caller."""

from __future__ import annotations

import hashlib
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from khop.kernels.linear_blocks import Blocks
from khop.kernels.linear_measure import Measured, Shape, fastest
from khop.kernels.linear_record import keep_record, read_record
from khop.user_cache import cache_folder

FEW_ROWS = 1024  # layers with fewer rows are left to torch
NARROW = 128  # smaller widths are measured separately
SHAPES: tuple[Shape, ...] = ("narrow", "wide")
DTYPES = (torch.float32, torch.float64, torch.bfloat16)

_CPU_FACTS = Path("/proc/cpuinfo")
_NAMING = ("vendor_id", "cpu family", "model", "model name", "stepping", "CPU implementer", "CPU part")


@dataclass(frozen=True)
class LayerKind:
    """The layers that share a choice: same processor, torch version, dtype and range of widths."""

    processor: str
    torch_version: str
    dtype: torch.dtype
    shape: Shape

    @classmethod
    def here(cls, dtype: torch.dtype, shape: Shape) -> LayerKind:
        """Return the kind of these layers on this machine."""
        return cls(processor(), torch.__version__, dtype, shape)

    @property
    def text(self) -> str:
        """All fields as readable text."""
        return f"{self.processor}; torch {self.torch_version}; {self.layers}"

    @property
    def layers(self) -> str:
        """The fields about layers as text: dtype and shape."""
        return f"{str(self.dtype).removeprefix('torch.')} {self.shape}"

    @property
    def number(self) -> int:
        """A digest of 60 bits."""
        return int(hashlib.sha256(self.text.encode()).hexdigest()[:15], 16)


class LinearChoices:
    """The choices of a process, by kind of layer. Threads may share it."""

    def __init__(
        self,
        folder: Callable[[], Path] = lambda: cache_folder() / "linear",
        measure: Callable[[torch.dtype, Shape, Blocks | None], Measured] = fastest,
    ) -> None:
        self._folder = folder
        self._measure = measure
        self._settled: dict[LayerKind, Measured] = {}
        self._missing: set[LayerKind] = set()  # not found before, so that inference keeps its choice
        self._lock = threading.RLock()
        self._fixed: Blocks | None = None
        self.is_fixed = False  # by the caller: nothing is measured or read

    def blocks(self, dtype: torch.dtype, width: int, may_measure: bool) -> Blocks | None:
        """Return the way to compute a layer of a width; None: by torch alone.

        The width is the larger one of the width of all inputs together and the output width. A layer that is
        not measured yet, and may not be measured now, is left to torch.
        """
        if dtype not in DTYPES:
            return None
        if self.is_fixed:
            fixed = self._fixed
            return fixed if fixed is not None and fixed.can_compute(dtype) else None
        kind = LayerKind.here(dtype, "narrow" if width < NARROW else "wide")
        found = self._settled.get(kind)
        if found is None and may_measure:
            found = self.settle(kind)
        elif found is None and kind not in self._missing:
            found = self._found(kind)
            if found is None:
                self._missing.add(kind)
        return None if found is None else found.blocks

    def settle(self, kind: LayerKind) -> Measured:
        """Return the choice for a kind of layers: from the user's cache folder, or measured now."""
        with self._lock:
            found = self._found(kind)
            if found is None:
                float32 = None
                if kind.dtype == torch.bfloat16:
                    float32 = self.settle(LayerKind.here(torch.float32, kind.shape)).blocks
                measured = self._measure(kind.dtype, kind.shape, float32)
                path = self._path(kind)
                found = measured if path is None else keep_record(path, kind.text, measured)
                self._settled[kind] = found
            return found

    def adopt(self, kind: LayerKind, measured: Measured) -> None:
        """Use a choice from another rank, or from before a run was resumed."""
        with self._lock:
            self._settled[kind] = measured

    def fix(self, blocks: Blocks | None) -> None:
        """Compute all layers of this process in one way (None: by torch alone), without measurements.

        Dtypes that this way cannot compute are left to torch.
        """
        self._fixed, self.is_fixed = blocks, True

    @property
    def setting(self) -> str:
        """The fixed choice as text for people."""
        return str(self._fixed or "torch") if self.is_fixed else "measured"

    @contextmanager
    def fixed(self, blocks: Blocks | None) -> Iterator[None]:
        """Fix the choice within a `with` block."""
        before = self._fixed, self.is_fixed
        self.fix(blocks)
        try:
            yield
        finally:
            self._fixed, self.is_fixed = before

    def _found(self, kind: LayerKind) -> Measured | None:
        """Return the choice if it is already known, in memory or in the file."""
        with self._lock:
            if kind in self._settled:
                return self._settled[kind]
            path = self._path(kind)
            found = None if path is None else read_record(path, kind.text)
            if found is None or not (found.blocks is None or found.blocks.can_compute(kind.dtype)):
                return None
            self._settled[kind] = found
            return found

    def _path(self, kind: LayerKind) -> Path | None:
        try:
            return self._folder() / f"{kind.number:015x}.json"
        except RuntimeError:  # there is no home folder
            return None


CHOICES = LinearChoices()  # the choices of this process


@cache
def processor() -> str:
    """Return the processor's name and kind, and the widest instructions that torch uses."""
    capability = torch.backends.cpu.get_cpu_capability()
    try:
        lines = _CPU_FACTS.read_text().split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    named = [facts[name] for name in _NAMING if name in facts]
    return " ".join([platform.machine(), *(named or [platform.processor()]), capability])


def fixed_by(text: str) -> Blocks | None:
    """Return a way by name: torch, blas:2048, onednn:4096, or blas-float32:2048 for bfloat16 rows."""
    library, _, rows = text.partition(":")
    if text == "torch":
        return None
    name = library.removesuffix("-float32")
    if name not in ("blas", "onednn") or not rows.isdecimal():
        raise ValueError(f"{text!r}: must be torch, or a library and a number of rows as in blas:2048")
    return Blocks("blas" if name == "blas" else "onednn", int(rows), library != name)
