"""A short measurement of the ways to compute a layer on this processor."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from khop.kernels.linear_blocks import Blocks, Library, has_onednn, linear_sum_blocks
from khop.kernels.relu import relu_
from khop.kernels.segment import segment_mean

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
