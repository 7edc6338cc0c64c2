"""How close to the limits of the memory does a GPU sample, gather, aggregate and train?

Stages, each kept as soon as it ends: the machine's own limits; sampling and numbering of [15, 10, 5] with
1,024 seeds (eager, and as a CUDA graph); gathering from device and pinned memory; aggregation; captured
training steps; loading by the CPU with training on the GPU; epochs of the trainer; the tests of the kernels
on the device. Batches are compared with the CPU's first. Times are medians of events on the device; kernels
run ten times in a CUDA graph, so that launches cost nothing. `peer` is the limit that `ratio` is taken of.

usage: python benchmarks/gpu.py [--stages limits,sampling,...] [--nodes 2449029]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path

import gpu_graph
import torch
import torch.nn.functional as F
from harness import ROOT, Figure, report
from torch import Tensor

import khop
from khop.batch import Batch
from khop.draw import DrawKey, Purpose
from khop.features.table import FeatureTable
from khop.kernels.csc import Csc
from khop.kernels.gather import Copies
from khop.kernels.pitch import empty_rows
from khop.kernels.triton import gather as device_gather
from khop.kernels.triton import segment
from khop.loading.batch_slot import BatchSlot, StepInput
from khop.loading.columns import ColumnChoice
from khop.loading.streams import CudaStreams
from khop.sampling.on_device.device_sampler import DeviceSampler
from khop.sampling.sampler import Seeds
from khop.training.captured_steps import CapturedSteps
from khop.training.tasks import NodeClassification

FANOUTS, BATCH, HIDDEN = [15, 10, 5], 1024, 256
EPOCH_STEPS, WARM_UP = 192, 20
CACHED = 0.2
EQUAL_BATCHES = 5


class Bench:
    """The figures so far, and what stages share."""

    def __init__(self, nodes: int) -> None:
        self.figures: list[Figure] = []
        self.nodes = nodes
        self.copy_gbs = 0.0
        self.link_gbs = 0.0

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
        self.figures.append(Figure(figure, round(value, 4), unit, name, rounded, None, notes))


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


def limits(bench: Bench) -> None:
    """What the machine does at most."""
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_()
    y = torch.empty_like(x)
    bench.copy_gbs = 2 * x.nbytes / device_ms(lambda: y.copy_(x)) / 1e6
    bench.add("copy on the device, read and written", bench.copy_gbs, "GB/s")
    host = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    bench.link_gbs = host.nbytes / device_ms(lambda: y[: host.numel()].copy_(host, non_blocking=True)) / 1e6
    bench.add("copy from pinned memory", bench.link_gbs, "GB/s")
    for dtype in (torch.bfloat16, torch.float32):
        a = torch.randn(8192, 8192, device="cuda", dtype=dtype)
        torch.backends.cuda.matmul.allow_tf32 = True
        bench.add(
            f"product of 8192, {dtype}", 2 * 8192**3 / device_ms(lambda a=a: a @ a, 10) / 1e9, "TFLOP/s"
        )


def tests(bench: Bench) -> None:
    """The tests of kernels and of batches with static shapes, on the device instead of the interpreter."""
    paths = [
        *(
            "tests/gpu",
            "tests/kernels/triton",
            "tests/kernels/test_linear_device.py",
            "tests/sampling/on_device",
        ),
        *(
            "tests/loading/test_batch_slot.py",
            "tests/loading/test_captured.py",
            "tests/loading/test_deferred_columns.py",
            "tests/loading/test_streams.py",
            "tests/loading/test_transfer.py",
        ),
        *("tests/training/test_captured_steps.py", "tests/models/test_padded_batches.py"),
        "--ignore=tests/kernels/triton/test_compilation.py",  # needs no GPU, and takes minutes
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:benchmark", "-n", "8", *paths]
    begun = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout[-6000:], file=sys.stderr)
    last = done.stdout.strip().splitlines()[-1]
    bench.add("tests of kernels on the device: failures", float(done.returncode != 0), "", None, summary=last)
    bench.add("tests of kernels on the device: time", time.monotonic() - begun, "s")


def sampling(bench: Bench) -> None:
    """Sampling and numbering of a batch, topology in device memory."""
    made = bench.new_sampler()  # its stamps are changed below
    for step in range(10, 10 + EQUAL_BATCHES):
        seeds, key = bench.seeds(step)
        found, wanted = made.sample(seeds, key), made.plan.sampler.sample(seeds, key)
        check_equal(found.map(lambda tensor: tensor.cpu()), wanted)
    bench.add("batches equal to the CPU's", EQUAL_BATCHES - made.overflows, "", overflows=made.overflows)
    batch = made._batch
    batch.write(*bench.seeds(20))

    def launch() -> None:
        batch.inputs.stamp.add_(1)  # the next batch: nodes of the one before are unknown again
        batch.launch()

    bench.add("sample and number, launches alone", device_ms(launch), "ms")
    replay = captured(launch)
    bench.add("sample and number, captured", device_ms(replay.replay), "ms")
    begun = time.perf_counter()
    for _ in range(100):
        replay.replay()
    bench.add("sample and number, captured: host time", (time.perf_counter() - begun) * 10, "ms")
    begun = time.perf_counter()
    for _ in range(30):
        launch()
    bench.add("sample and number, eager: host time of launches", (time.perf_counter() - begun) / 30e-3, "ms")
    torch.cuda.synchronize()
    made = bench.sampler
    made.sample(*bench.seeds(20))
    begun = time.perf_counter()
    for step in range(20, 70):
        made.sample(*bench.seeds(step))
    bench.add("sample and number, eager, one wait: whole call", (time.perf_counter() - begun) / 50e-3, "ms")
    for name, part in kernel_times(launch).items():
        bench.add(f"sample and number: {name}", part / 1e3, "ms")


def check_equal(found: khop.batch.Sample, wanted: khop.batch.Sample) -> None:
    """Raise AssertionError unless two samples have the same bits."""
    tensors: list[Tensor] = []
    wanted.map(lambda tensor: (tensors.append(tensor), tensor)[1])
    expected = iter(tensors)
    found.map(lambda tensor: (_same(tensor, next(expected)), tensor)[1])


def _same(found: Tensor, wanted: Tensor) -> None:
    assert found.dtype == wanted.dtype, (found.dtype, wanted.dtype)
    assert torch.equal(found, wanted)


def kernel_times(work: Callable[[], object], rounds: int = 10) -> dict[str, float]:
    """Microseconds of each kernel per call of the work, by name."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(rounds):
            work()
        torch.cuda.synchronize()
    return {event.key: event.self_device_time_total / rounds for event in profile.key_averages()}


def gather(bench: Bench) -> None:
    """Gathering the rows of a batch from device memory and from pinned memory."""
    sample = bench.sampler.sample(*bench.seeds(20))
    ids = sample.nodes["node"].clone()
    for dtype in (torch.float32, torch.bfloat16):
        columns = [bench.products.x.to(dtype)]
        if dtype is torch.bfloat16:
            columns.append(F.pad(columns[0], (0, 28)))  # 256 bytes per row
        for column in columns:
            width = column.shape[1]
            out = empty_rows(ids.numel(), (width,), dtype, torch.device("cuda"))
            near = empty_rows(column.shape[0], (width,), dtype, torch.device("cuda"))
            near.copy_(column)
            row_bytes = near.stride(0) * near.element_size()
            moved = (2 * row_bytes + 8) * ids.numel()
            ms = kernel_ms(lambda near=near, out=out: device_gather.gather(near, ids, out=out))
            assert torch.equal(out, near[ids])
            of_copy = moved / ms / 1e6 / bench.copy_gbs if bench.copy_gbs else 0.0
            name = f"gather {dtype} {width}".replace("torch.", "")
            bench.add(f"{name}, device", ms, "ms", ("bandwidth of a copy", of_copy), rows=ids.numel())
            ms = kernel_ms(lambda near=near: near.index_select(0, ids))
            bench.add(f"{name}, device, torch.index_select", ms, "ms")
            far = torch.zeros(near.shape[0], near.stride(0), dtype=dtype, pin_memory=True)[:, :width]
            far.copy_(column)
            out.zero_()
            ms = kernel_ms(lambda far=far, out=out: device_gather.gather(far, ids, out=out), 4)
            assert torch.equal(out, near[ids])
            of_link = row_bytes * ids.numel() / ms / 1e6 / bench.link_gbs if bench.link_gbs else 0.0
            bench.add(f"{name}, pinned", ms, "ms", ("bandwidth of a copy", of_link), rows=ids.numel())


def aggregation(bench: Bench) -> None:
    """Means of neighbors, forward and backward, for each layer of a batch."""
    blocks = bench.sampler.sample(*bench.seeds(20)).blocks
    for number, block in enumerate(blocks, start=1):
        edges = Csc(block.adjacency.indptr.clone(), block.adjacency.indices.clone())
        width = gpu_graph.WIDTH if number == 1 else HIDDEN
        for dtype in (torch.float32, torch.bfloat16):
            x = empty_rows(block.num_src, (width,), dtype, torch.device("cuda")).normal_()
            out = segment.segment_mean(x, edges)
            of_edges = edges.indices.numel() * (x.stride(0) * x.element_size() + 4)
            moved = of_edges + out.shape[0] * x.stride(0) * x.element_size()
            ms = kernel_ms(lambda x=x, edges=edges: segment.segment_mean(x, edges))
            of_copy = moved / ms / 1e6 / bench.copy_gbs if bench.copy_gbs else 0.0
            name = f"mean of neighbors, layer {number}, {dtype} {width}".replace("torch.", "")
            bench.add(name, ms, "ms", ("bandwidth of a copy", of_copy), edges=edges.indices.numel())


def training(bench: Bench) -> None:
    """Captured steps: batches made on the device ahead of the step, topology in device memory."""
    for dtype in (torch.bfloat16, torch.float32):
        x = bench.products.x.to(dtype)
        near = empty_rows(x.shape[0], (x.shape[1],), dtype, torch.device("cuda"))
        near.copy_(x)
        far = torch.zeros(near.shape[0], near.stride(0), dtype=dtype, pin_memory=True)[:, : x.shape[1]]
        far.copy_(x)
        cached = cached_rows(bench, near, CACHED)
        places = {
            "device": (near, None),
            "pinned": (far, None),
            f"pinned, {CACHED:.0%} cached": (far, cached),
        }
        for place, (column, copies) in places.items():
            captured_training(bench, column, copies, f"{dtype}, features {place}".replace("torch.", ""))


def cached_rows(bench: Bench, x: Tensor, share: float) -> Copies:
    """The rows that the batches of two epochs before need most often."""
    counts = torch.zeros(x.shape[0], dtype=torch.int32, device="cuda")
    for step in range(EPOCH_STEPS):
        seeds, _ = bench.seeds(step)
        nodes = bench.sampler.sample(seeds, DrawKey.of(1, Purpose.HOP, 0, step)).nodes["node"]
        counts[nodes] += 1
    rows = counts.argsort(descending=True, stable=True)[: int(share * x.shape[0])]
    slots = torch.full((x.shape[0],), -1, dtype=torch.int32, device="cuda")
    slots[rows] = torch.arange(rows.numel(), dtype=torch.int32, device="cuda")
    cache = empty_rows(rows.numel(), (x.shape[1],), x.dtype, x.device)
    bench.add(f"rows of batches in a cache of {share:.0%}", float(counts[rows].sum() / counts.sum()), "share")
    return Copies(slots, cache.copy_(x[rows]))


def captured_training(bench: Bench, x: Tensor, copies: Copies | None, name: str) -> None:
    """Time of a step, and its parts."""
    torch.manual_seed(0)
    products, plan = bench.products, bench.new_sampler().plan
    choice = ColumnChoice({"node": ("x",)}, {}, {"node": ("y",)})
    features = FeatureTable({"node": {"x": x, "y": products.y.cuda()}})
    streams = CudaStreams(torch.device("cuda"))
    ahead = streams.recorder(streams.side())
    caches = {} if copies is None else {"node": {"x": copies}}
    slots = [BatchSlot(plan, features, choice, ahead, caches) for _ in range(2)]
    model = khop.models.SAGE.for_graph(products.graph, hidden=HIDDEN, layers=3, label="y").cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    task = NodeClassification("node", "y")
    steps = CapturedSteps(model, task, slots, streams, x.dtype)
    begun, losses = 0.0, []
    inputs = (StepInput(*bench.seeds(step), 1 / BATCH) for step in range(10, 10 + EPOCH_STEPS))
    for number, loss in enumerate(steps.losses(inputs)):
        optimizer.step()
        if number % 50 == 0:
            losses.append(round(float(loss), 4))
        if number == WARM_UP:
            torch.cuda.synchronize()
            begun = time.perf_counter()
    torch.cuda.synchronize()
    ended, count = time.perf_counter(), EPOCH_STEPS - WARM_UP - 1
    bench.add(f"step, {name}", (ended - begun) / count * 1e3, "ms", overflows=steps.overflows, losses=losses)

    def next_batch() -> None:
        slots[0]._made.inputs.stamp.add_(1)
        slots[0]._recording.replay()

    for part, work in (
        ("gradients alone", steps._steps[0].replay),
        ("batch alone", next_batch),
        ("update alone", optimizer.step),
    ):
        bench.add(f"step, {name}: {part}", device_ms(work), "ms")
    begun = time.perf_counter()
    optimizer.step()
    bench.add(f"step, {name}: host time of the update", (time.perf_counter() - begun) * 1e3, "ms")
    for kernel, part in sorted(kernel_times(steps._steps[0].replay).items(), key=lambda item: -item[1])[:12]:
        bench.add(f"step, {name}: {kernel[:60]}", part / 1e3, "ms")


def loading(bench: Bench) -> None:
    """khop.Loader with stores on the CPU and on the device, alone and with ordinary training steps."""
    products = bench.products
    model = khop.models.SAGE.for_graph(products.graph, hidden=HIDDEN, layers=3, label="y").cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step(batch: Batch) -> None:
        losses = F.cross_entropy(model(batch), batch.seed_column("y"), reduction="none")
        optimizer.zero_grad()
        batch.global_mean(losses).backward()
        optimizer.step()

    expected = first_batch(products.graph, products.train, None)
    for topology, columns in (
        ("host", "host"),
        ("host", "pinned"),
        ("device", "pinned"),
        ("device", "device"),
    ):
        graph = products.graph.on("cuda", topology=topology, columns=columns)
        name = f"loader, topology {topology}, columns {columns}"
        found = first_batch(graph, products.train, None)
        check_equal(found.sample.map(lambda tensor: tensor.cpu()), expected.sample)
        _same(found["x"].cpu(), expected["x"])
        for work, part in ((None, "alone"), (step, "with ordinary training steps")):
            bench.add(f"{name}, {part}", loader_ms(graph, products.train, work), "ms")
    ready = first_batch(products.graph, products.train, "cuda")
    bench.add("ordinary training step on a ready batch, float32", device_ms(lambda: step(ready)), "ms")


def new_loader(graph: khop.Graph, train: Tensor, device: str | None) -> khop.Loader:
    sampler = khop.NeighborSampler(graph, FANOUTS)
    return khop.Loader(
        sampler, train, BATCH, shuffle=True, columns=["x"], seed_columns=["y"], device=device, prefetch=8
    )


def first_batch(graph: khop.Graph, train: Tensor, device: str | None) -> Batch:
    return new_loader(graph, train, device).batch(0, 0)


def loader_ms(graph: khop.Graph, train: Tensor, work: Callable[[Batch], None] | None) -> float:
    """Wall time per batch of an epoch, after the first ones."""
    begun, steps = 0.0, 0
    for batch in islice(new_loader(graph, train, None).epoch(0), 120):
        if steps == WARM_UP:
            torch.cuda.synchronize()
            begun = time.perf_counter()
        if work is not None:
            work(batch)
        steps += 1
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / (steps - WARM_UP) * 1e3


def command(bench: Bench) -> None:
    """`khop train` for one epoch with single launches and with recorded ones, evaluation left out."""
    for launches in ("single", "recorded"):
        with tempfile.TemporaryDirectory() as folder:
            graph = bench.products.graph.on("cuda", topology="device", columns="device")
            loader = new_loader(graph, bench.products.train, None)
            torch.manual_seed(0)
            model = khop.models.SAGE.for_graph(bench.products.graph, hidden=HIDDEN, layers=3, label="y")
            settings = khop.TrainerSettings(
                2, precision="bfloat16", device="cuda", launches=launches, evaluate_every=2
            )
            task = NodeClassification("node", "y")
            trainer = khop.Trainer(model, task, loader, lambda: {"val": 0.0}, settings, Path(folder))
            records = trainer.fit().records
            seconds = records[-1]["seconds"]["total"]  # of the second epoch: kernels are compiled
            bench.add(f"trainer, launches {launches}: step", seconds / len(loader) * 1e3, "ms")


STAGES: dict[str, Callable[[Bench], None]] = {
    "limits": limits,
    "sampling": sampling,
    "gather": gather,
    "aggregation": aggregation,
    "training": training,
    "loading": loading,
    "command": command,
    "tests": tests,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--nodes", type=int, default=gpu_graph.NODES)
    options = parser.parse_args(arguments)
    bench = Bench(options.nodes)
    failed = []
    for name in options.stages.split(","):
        begun = time.monotonic()
        try:
            STAGES[name](bench)
        except Exception as error:  # the other stages' figures are worth having
            failed.append(f"{name}: {type(error).__name__}: {error}")
            print(failed[-1], file=sys.stderr)
        bench.add(f"stage {name}", time.monotonic() - begun, "s")
        report("gpu", bench.figures)
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
