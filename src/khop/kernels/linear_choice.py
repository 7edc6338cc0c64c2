"""The way to compute layers: measured once per machine and recorded, or fixed by the caller.

A short measurement of the ways to compute a layer on this processor.

Measured choices as small files in the user's cache folder, one for each machine, dtype and shape.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from khop.kernels.activations import relu_
from khop.kernels.linear_blocks import Blocks, Library, has_onednn, linear_sum_blocks
from khop.kernels.segment import segment_mean
from khop.user_cache import cache_folder

Shape = Literal["narrow", "wide"]

ROWS = 8192  # a layer of this size does not fit the caches of a core, as the layers of a batch do not
TRIAL_ROWS = 1024
WIDTHS: Mapping[Shape, tuple[int, int]] = {"narrow": (32, 64), "wide": (64, 128)}  # two inputs; output
DEGREE = 5  # edges per row
BLOCK_ROWS = (1024, 2048, 4096)
ROUNDS = 5
BUDGET_S = 1.0  # of wall time; no further round begins after it
FINALISTS = 3
NEAR = 1.06  # a block of fewer rows is chosen if its time is within this factor: it leaves room in the caches
HOPELESS = 1.5  # ways slower than the fastest by this factor on a few rows are skipped

Way = Blocks | None  # None: torch's own layers, one operator after another
Step = Callable[[], object]


@dataclass(frozen=True)
class Measured:
    """The fastest way, and the ratio of its time to the fastest float32 time (1.0 for other dtypes)."""

    blocks: Way
    over_float32: float = 1.0


def fastest(dtype: torch.dtype, shape: Shape, float32: Way = None) -> Measured:
    """Measure all ways to compute a layer, forward and backward; `float32` is the fastest way there.

    It takes about half a second of one thread. It compares processor time of this thread, because other work
    on the machine disturbs it least. Rounds alternate between the ways, and the best time of each way counts.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.enable_grad(), torch.autocast("cpu", enabled=False):
            seconds = _rounds(_steps(dtype, shape))
            best = chosen(seconds)
            ratio = _over_float32(best, float32, shape) if dtype == torch.bfloat16 else 1.0
    finally:
        torch.set_num_threads(threads)
    return Measured(best, ratio)


def chosen(seconds: Mapping[Way, float]) -> Way:
    """Return the fastest way, or the one that differs only by fewer rows and takes hardly longer.

    Measured layers are narrower than many models, and wider rows fill the caches sooner.
    """
    best = min(seconds, key=lambda way: seconds[way])
    near = [
        way
        for way in seconds
        if best is not None
        and way is not None
        and replace(way, rows=best.rows) == best
        and seconds[way] <= NEAR * seconds[best]
    ]
    return min(near, key=lambda way: way.rows, default=None)


def _over_float32(half: Way, single: Way, shape: Shape) -> float:
    """Return the ratio of a layer's time in bfloat16 to float32, with the mean over its edges."""
    steps = [
        [_step(way, dtype, shape, ROWS), _mean_step(dtype, shape, ROWS)]
        for way, dtype in ((half, torch.bfloat16), (single, torch.float32))
    ]
    best = [[_best([step]) for step in of_dtype] for of_dtype in steps]
    for _ in range(1, ROUNDS):
        best = [
            [min(before, _best([step])) for before, step in zip(times, of_dtype, strict=True)]
            for times, of_dtype in zip(best, steps, strict=True)
        ]
    return sum(best[0]) / sum(best[1])


def _steps(dtype: torch.dtype, shape: Shape) -> dict[Way, Step]:
    """Return a call for each way, without ways that are much slower on a few rows."""
    ways = _ways(dtype)
    tried = {_trial_of(way): _step(_trial_of(way), dtype, shape, TRIAL_ROWS) for way in ways}
    trials = {way: _best([step] * 3) for way, step in tried.items()}  # the first call also sets up
    limit = HOPELESS * min(trials.values())
    return {way: _step(way, dtype, shape, ROWS) for way in ways if trials[_trial_of(way)] <= limit}


def _ways(dtype: torch.dtype) -> list[Way]:
    libraries: list[Library] = ["blas"]
    if has_onednn() and dtype != torch.float64:
        libraries.append("onednn")
    kinds = [(library, dtype == torch.bfloat16) for library in libraries]
    if dtype == torch.bfloat16:
        kinds.insert(0, ("blas", False))
    blocks = [Blocks(library, rows, widened) for library, widened in kinds for rows in BLOCK_ROWS]
    return [None, *blocks]


def _trial_of(way: Way) -> Way:
    """Return the way that represents this one on few rows: there the block size makes no difference."""
    return way if way is None else Blocks(way.library, BLOCK_ROWS[0], way.in_float32)


def _rounds(steps: Mapping[Way, Step]) -> dict[Way, float]:
    """Return the best seconds of each step; slow ones are left out after the first round."""
    begun = time.perf_counter()
    seconds = {way: _best([step]) for way, step in steps.items()}
    finalists = sorted(seconds, key=lambda way: seconds[way])[:FINALISTS]
    for _ in range(1, ROUNDS):
        if time.perf_counter() - begun > BUDGET_S:
            break
        for way in finalists:
            seconds[way] = min(seconds[way], _best([steps[way]]))
    return {way: seconds[way] for way in finalists}


def _best(steps: list[Step]) -> float:
    """Return the least processor time of this thread, in seconds."""
    best = float("inf")
    for step in steps:
        begun = time.thread_time()
        step()
        best = min(best, time.thread_time() - begun)
    return best


def _step(way: Way, dtype: torch.dtype, shape: Shape, rows: int) -> Step:
    """Return a call of a layer with two inputs and relu, forward and backward."""
    width, out = WIDTHS[shape]
    generator = torch.Generator().manual_seed(0)

    def made(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(dtype)

    leaves = [made(rows, width), made(rows, width), made(out, width), made(out, width), made(out)]
    first, second, own, other, bias = (leaf.requires_grad_() for leaf in leaves)
    gradient = made(rows, out)

    def step() -> object:
        if way is None:
            result = F.linear(first, own, bias)
            result += F.linear(second, other)
            result = relu_(result)
        else:
            result = linear_sum_blocks(way, dtype, [first, second], [own, other], bias, None, "relu")
        return torch.autograd.grad(result, leaves, gradient)

    return step


def _mean_step(dtype: torch.dtype, shape: Shape, rows: int) -> Step:
    """Return a call of the mean over each row's edges, forward and backward."""
    _, out = WIDTHS[shape]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, out, generator=generator).to(dtype).requires_grad_()
    gradient = torch.randn(rows, out, generator=generator).to(dtype)
    indptr = torch.arange(0, rows * DEGREE + 1, DEGREE)
    indices = torch.randint(rows, (rows * DEGREE,), generator=generator)
    return lambda: torch.autograd.grad(segment_mean(x, indptr, indices), x, gradient)


FORMAT = 2  # 1: near ties went to any number of rows


def read_record(path: Path, key: str) -> Measured | None:
    """Read the choice for a key from a file; None if the file is missing, damaged or for another key."""
    try:
        found = json.loads(path.read_bytes())
        if (found["format"], found["key"]) != (FORMAT, key):
            return None
        ratio = found["over_float32"]
        if isinstance(ratio, bool) or not isinstance(ratio, float | int) or not 0 < ratio < 1e6:
            return None
        return Measured(blocks_of(found["blocks"]), float(ratio))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def keep_record(path: Path, key: str, measured: Measured) -> Measured:
    """Write the choice unless another process already did; return the choice in the file.

    The file appears whole or not at all. If it cannot be written, only this process uses the choice.
    """
    content = {
        "format": FORMAT,
        "key": key,
        "blocks": values_of(measured.blocks),
        "over_float32": measured.over_float32,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError:
        return measured
    new = Path(name)
    try:
        with open(descriptor, "w") as file:
            file.write(json.dumps(content) + "\n")
        return _publish(new, path, key, measured)
    except OSError:
        return measured
    finally:
        new.unlink(missing_ok=True)


def _publish(new: Path, path: Path, key: str, measured: Measured) -> Measured:
    try:
        os.link(new, path)  # fails if the file exists: the first writer wins
    except FileExistsError:
        found = read_record(path, key)
        if found is not None:
            return found
        new.replace(path)
    except OSError:  # a file system without links
        new.replace(path)
    return measured


def values_of(blocks: Blocks | None) -> dict[str, object]:
    """Return the choice as JSON values."""
    if blocks is None:
        return {"library": "torch"}
    return {"library": blocks.library, "rows": blocks.rows, "in_float32": blocks.in_float32}


def blocks_of(values: object) -> Blocks | None:
    """Return the choice from JSON values; ValueError if they are invalid."""
    match values:
        case {"library": "torch", **rest} if not rest:
            return None
        case {"library": library, "rows": int(rows), "in_float32": bool(in_float32), **rest}:
            if not rest and not isinstance(rows, bool):
                return Blocks(library, rows, in_float32)
    raise ValueError(f"{values!r}: not a way to compute a layer; measure it anew")


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
