"""A short measurement of the ways to compute a layer on this processor."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from khop.kernels.linear_blocks import Blocks, Library, has_onednn, linear_sum_blocks
from khop.kernels.relu import relu_

Shape = Literal["narrow", "wide"]

ROWS = 8192  # a layer of so many rows does not fit the caches of a core, as the layers of a batch do not
TRIAL_ROWS = 1024
WIDTHS: Mapping[Shape, tuple[int, int]] = {"narrow": (32, 64), "wide": (64, 128)}  # of two inputs; out
BLOCK_ROWS = (1024, 2048, 4096)
ROUNDS = 5
BUDGET_S = 1.0  # of wall time, after which no further round begins
FINALISTS = 3
HOPELESS = 1.5  # times as slow as the fastest on a few rows: not looked at further

Way = Blocks | None  # None: torch's own layers, one operator after another
Step = Callable[[], object]


@dataclass(frozen=True)
class Measured:
    """The fastest way, and its time over that of the fastest way in float32 (1.0 for other dtypes)."""

    blocks: Way
    over_float32: float = 1.0


def fastest(dtype: torch.dtype, shape: Shape, float32: Way = None) -> Measured:
    """Measure all ways to compute a layer, forward and backward; `float32` is the fastest way there.

    A quarter of a second of one thread. Its processor time counts, which other work on the machine disturbs
    least; rounds alternate between the ways, and the best time of each counts.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.enable_grad(), torch.autocast("cpu", enabled=False):
            steps = _steps(dtype, shape)
            reference = _step(float32, torch.float32, shape, ROWS) if dtype == torch.bfloat16 else None
            seconds, reference_s = _rounds(steps, reference)
    finally:
        torch.set_num_threads(threads)
    best = min(seconds, key=lambda way: seconds[way])
    return Measured(best, 1.0 if reference_s is None else seconds[best] / reference_s)


def _steps(dtype: torch.dtype, shape: Shape) -> dict[Way, Step]:
    """A call for each way that is not hopeless, as a few rows tell."""
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
    """The way that stands for this one on few rows, where the size of a block makes no difference."""
    return way if way is None else Blocks(way.library, BLOCK_ROWS[0], way.in_float32)


def _rounds(steps: Mapping[Way, Step], reference: Step | None) -> tuple[dict[Way, float], float | None]:
    """Seconds of each step at its best, slow ones out after the first round; and of the reference."""
    begun = time.perf_counter()
    seconds = {way: _best([step]) for way, step in steps.items()}
    reference_s = None if reference is None else _best([reference])
    finalists = sorted(seconds, key=lambda way: seconds[way])[:FINALISTS]
    for _ in range(1, ROUNDS):
        if time.perf_counter() - begun > BUDGET_S:
            break
        for way in finalists:
            seconds[way] = min(seconds[way], _best([steps[way]]))
        if reference is not None and reference_s is not None:
            reference_s = min(reference_s, _best([reference]))
    return {way: seconds[way] for way in finalists}, reference_s


def _best(steps: list[Step]) -> float:
    """Least processor time of this thread, in seconds."""
    best = float("inf")
    for step in steps:
        begun = time.thread_time()
        step()
        best = min(best, time.thread_time() - begun)
    return best


def _step(way: Way, dtype: torch.dtype, shape: Shape, rows: int) -> Step:
    """A layer of two inputs with relu, forward and backward, as a call."""
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
