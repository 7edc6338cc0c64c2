"""Shared by the stages of gpu.py: the graph, samplers, figures, and times on the device."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from time import perf_counter
from unittest.mock import patch

import gpu_graph
import torch
from gpu_run import append, figures_of
from harness import Figure
from torch import Tensor

import khop
from khop.draw import DrawKey, Purpose
from khop.sampling.on_device.device_sampler import DeviceSampler
from khop.sampling.seeds import Seeds

FANOUTS, BATCH, HIDDEN = [15, 10, 5], 1024, 256
EPOCH_STEPS, WARM_UP = 192, 20
COPY, LINK = "copy on the device, read and written", "copy from pinned memory"


class Bench:
    """The file of figures, and all that stages share."""

    def __init__(self, nodes: int, kept: Path) -> None:
        self._kept = kept
        self.nodes = nodes
        before = {figure.figure: figure.value for figure in figures_of(kept)}
        self.copy_gbs = before.get(COPY, 0.0)  # 0: not measured
        self.link_gbs = before.get(LINK, 0.0)

    @cached_property
    def products(self) -> gpu_graph.Products:
        """The graph of all stages."""
        return gpu_graph.products(self.nodes)

    @cached_property
    def sampler(self) -> DeviceSampler:
        """The sampler on the device, with capacities of ten batches."""
        return self.new_sampler()

    def new_sampler(self) -> DeviceSampler:
        """Make another sampler, with tables of its own."""
        sampler = khop.NeighborSampler(self.products.graph.topology, FANOUTS)
        return DeviceSampler.measured(sampler, [self.seeds(step) for step in range(10)], "cuda")

    def seeds(self, step: int) -> tuple[Seeds, DrawKey]:
        """Seeds and key of a step."""
        at = torch.arange(BATCH) + step * BATCH
        ids = self.products.train[at % self.products.train.numel()]
        return Seeds({"node": ids}, {"node": at}), DrawKey.of(0, Purpose.HOP, 0, step)

    def add(
        self,
        figure: str,
        value: float,
        unit: str,
        peer: tuple[str, float] | None = None,
        **notes: object,
    ) -> None:
        """Keep a figure; `peer` is a name and the ratio to it."""
        name, ratio = peer or (None, None)
        rounded = None if ratio is None else round(ratio, 3)
        append(self._kept, Figure(figure, round(value, 4), unit, name, rounded, None, notes))

    def add_moved(self, figure: str, ms: float, moved: int, **notes: object) -> None:
        """Keep the time of a kernel with its bytes over time, against the copy on the device."""
        gbs = moved / ms / 1e6
        of_copy = gbs / self.copy_gbs if self.copy_gbs else 0.0
        notes = {"bytes": moved, "GB/s": round(gbs, 1), **notes}
        self.add(figure, ms, "ms", ("bandwidth of a copy", of_copy), **notes)


def device_ms(work: Callable[[], object], rounds: int = 30, warm_up: int = 5) -> float:
    """The median time of some work on the device, in milliseconds."""
    for _ in range(warm_up):
        work()
    times = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def kernel_ms(work: Callable[[], object], times: int = 10) -> float:
    """The median time of a few kernels on the device, without their launches, in milliseconds."""

    def repeated() -> None:
        for _ in range(times):
            work()

    return device_ms(captured(repeated).replay, 10, 2) / times


def captured(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """The work as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return graph


def check_equal(found: khop.batch.Sample, wanted: khop.batch.Sample) -> None:
    """Raise AssertionError unless two samples have the same bits."""
    tensors: list[Tensor] = []
    wanted.map(lambda tensor: (tensors.append(tensor), tensor)[1])
    expected = iter(tensors)
    found.map(lambda tensor: (same(tensor, next(expected)), tensor)[1])


def same(found: Tensor, wanted: Tensor) -> None:
    assert found.dtype == wanted.dtype, (found.dtype, wanted.dtype)
    assert torch.equal(found, wanted)


def kernel_times(work: Callable[[], object], rounds: int = 10) -> dict[str, float]:
    """Microseconds of each kernel per call of the work, by name."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(rounds):
            work()
        torch.cuda.synchronize()
    return {event.key: event.self_device_time_total / rounds for event in profile.key_averages()}


@contextmanager
def waits_timed() -> Iterator[list[float]]:
    """Add up the seconds that the host waits for events in the block: the only item of the list."""
    waited, wait = [0.0], torch.cuda.Event.synchronize

    def timed(event: torch.cuda.Event) -> None:
        begun = perf_counter()
        wait(event)
        waited[0] += perf_counter() - begun

    with patch.object(torch.cuda.Event, "synchronize", timed):
        yield waited


@contextmanager
def waits_refused() -> Iterator[None]:
    """Let torch raise RuntimeError for each call in the block that waits for the device, but for events."""
    torch.cuda.synchronize()
    with warnings.catch_warnings(action="ignore"):  # that the mode may overlook waits
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
