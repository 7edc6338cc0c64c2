"""Stages of gpu.py: captured training steps, and the waits of the host in them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import gpu_graph
import torch
from gpu_bench import (
    BATCH,
    EPOCH_STEPS,
    FANOUTS,
    HIDDEN,
    WARM_UP,
    Bench,
    device_ms,
    kernel_times,
    waits_refused,
    waits_timed,
)
from torch import Tensor

import khop
from khop.draw import DrawKey, Purpose
from khop.graph.features.table import FeatureTable
from khop.kernels.gather import Copies
from khop.kernels.memory import empty_rows
from khop.loading.columns import ColumnChoice
from khop.loading.device.batch_slot import BatchSlot, StepInput
from khop.loading.device.device_memory import memory_of
from khop.loading.device.device_placement import StorePlace
from khop.loading.device.streams import CudaStreams
from khop.training.recorded_steps import CapturedSteps
from khop.training.tasks import NodeClassification

CACHED = 0.2
PINNED = frozenset({"x"})


def training(bench: Bench) -> None:
    """Captured steps: batches made on the device ahead of the step, topology in device memory."""
    for dtype in (torch.bfloat16, torch.float32):
        near, far = device_column(bench, dtype), pinned_column(bench, dtype)
        places = {
            "device": Features(near),
            "pinned": Features(far, PINNED),
            f"pinned, {CACHED:.0%} cached": Features(far, PINNED, cached_rows(bench, near, CACHED)),
        }
        for place, features in places.items():
            captured_training(bench, features, f"{dtype}, features {place}".replace("torch.", ""))


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


@dataclass(frozen=True)
class Features:
    """The input column, if it is pinned its name, and copies of some of its rows on the device."""

    x: Tensor
    pinned: frozenset[str] = frozenset()
    copies: Copies | None = None


@dataclass(frozen=True)
class Prepared:
    """Captured steps, the memory of their batches, and the optimizer."""

    steps: CapturedSteps
    slots: list[BatchSlot]
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True)
class EpochTime:
    """Means over the steps of an epoch, after the first ones."""

    step_ms: float
    host_ms: float  # of a whole step, without waits for events
    losses: list[float]


def prepared(bench: Bench, given: Features) -> Prepared:
    """SAGE of 3 x 256, recorded, with the features in some memory."""
    torch.manual_seed(0)
    products, plan = bench.products, bench.new_sampler().plan
    choice = ColumnChoice({"node": ("x",)}, {}, {"node": ("y",)})
    features = FeatureTable({"node": {"x": given.x, "y": products.y.cuda()}}, pinned=given.pinned)
    streams = CudaStreams(torch.device("cuda"))
    ahead = streams.recorder(streams.side())
    caches = {} if given.copies is None else {"node": {"x": given.copies}}
    slots = [BatchSlot(plan, features, choice, ahead, caches) for _ in range(2)]
    model = khop.models.SAGE.for_graph(products.graph, hidden=HIDDEN, layers=3, label="y").cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    task = NodeClassification("node", "y")
    precision = "bfloat16" if given.x.dtype == torch.bfloat16 else "tf32"
    return Prepared(CapturedSteps(model, task, slots, streams, precision), slots, optimizer)


def epoch(bench: Bench, made: Prepared) -> EpochTime:
    """Train for one epoch, batches made ahead."""
    begun, losses = 0.0, []
    inputs = (StepInput(*bench.seeds(step), 1 / BATCH) for step in range(10, 10 + EPOCH_STEPS))
    with waits_timed() as waited:
        for number, loss in enumerate(made.steps.losses(inputs)):
            made.optimizer.step()
            if number % 50 == 0:
                losses.append(loss.clone())
            if number == WARM_UP:
                torch.cuda.synchronize()
                begun, waited[0] = time.perf_counter(), 0.0
        issued = time.perf_counter() - begun - waited[0]
        torch.cuda.synchronize()
    ended, count = time.perf_counter() - begun, EPOCH_STEPS - WARM_UP - 1
    return EpochTime(ended / count * 1e3, issued / count * 1e3, [round(float(loss), 4) for loss in losses])


def ready_ms(made: Prepared) -> float:
    """Time of a step over batches that are there already: gradients and update alone."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for number in range(EPOCH_STEPS):
        made.steps._steps[number % len(made.slots)].replay()
        made.optimizer.step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / EPOCH_STEPS * 1e3


def captured_training(bench: Bench, features: Features, name: str) -> None:
    """Time of a step, and its parts."""
    made = prepared(bench, features)
    steps, slots, optimizer = made.steps, made.slots, made.optimizer
    found = epoch(bench, made)
    overflows, ready = steps.overflows, ready_ms(made)
    bench.add(f"step, {name}", found.step_ms, "ms", losses=found.losses)
    bench.add(f"step, {name}: host time of the whole step", found.host_ms, "ms")
    bench.add(f"step, {name}: overflows per epoch", overflows, "batches")
    bench.add(f"step, {name}: on a ready batch", ready, "ms")
    bench.add(f"step, {name}: epoch over ready batches", found.step_ms / ready, "times")

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


def waits(bench: Bench) -> None:
    """Batches, captured steps and loaders while torch refuses each call that waits, but for events."""
    batch = bench.sampler._batch
    batch.write(*bench.seeds(10))
    batch.launch()  # compiles kernels
    seeds = bench.seeds(11)

    def one_batch() -> None:
        batch.write(*seeds)
        batch.launch()

    add_refusal(bench, "a batch with static shapes", one_batch)
    made = prepared(bench, Features(device_column(bench, torch.float32)))
    inputs = [StepInput(*bench.seeds(step), 1 / BATCH) for step in range(10, 10 + 2 * WARM_UP)]
    losses = made.steps.losses(iter(inputs))

    def some_steps() -> None:
        for _ in islice(losses, WARM_UP):
            made.optimizer.step()

    some_steps()
    add_refusal(bench, f"{WARM_UP} captured steps", some_steps)
    bench.add("sync debug mode error: overflows of these steps", made.steps.overflows, "batches")
    graph = gpu_graph.quantized(bench.products).on("cuda", topology="device", columns="device")
    for what, loader in placed_loaders(bench.products, graph).items():
        batches = iter(loader)
        list(islice(batches, WARM_UP))  # compiles kernels
        add_refusal(
            bench, f"{WARM_UP} batches of {what}", lambda batches=batches: list(islice(batches, WARM_UP))
        )


def placed_loaders(products: gpu_graph.Products, graph: khop.Graph) -> dict[str, khop.Loader]:
    """Loaders of nodes and of links over columns of int8, with the shapes of each batch."""
    owners = torch.repeat_interleave(torch.arange(products.y.numel()), products.csc.indptr.diff())
    some = torch.arange(0, owners.numel(), 50)
    links = khop.Links(torch.stack([products.csc.indices[some].long(), owners[some]]))
    by_link = khop.LinkSampler(graph, FANOUTS, negatives=khop.UniformNegatives(1))
    by_node = khop.NeighborSampler(graph, FANOUTS)
    return {
        "nodes": khop.Loader(by_node, products.train, BATCH, columns=["x"], seed_columns=["y"]),
        "links": khop.Loader(by_link, links, BATCH, columns=["x"]),
    }


def add_refusal(bench: Bench, what: str, work: Callable[[], None]) -> None:
    """Keep 1 with the reason if some work waits for the device, else 0."""
    reason = ""
    try:
        with waits_refused():
            work()
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
    bench.add(f"sync debug mode error: {what}, refused", float(bool(reason)), "", reason=reason)


def device_column(bench: Bench, dtype: torch.dtype) -> Tensor:
    """The features on the device, with rows at padded pitch."""
    x = bench.products.x
    return empty_rows(x.shape[0], (x.shape[1],), dtype, torch.device("cuda")).copy_(x)


def pinned_column(bench: Bench, dtype: torch.dtype) -> Tensor:
    """The features in pinned memory, as a placed graph has them."""
    return memory_of("cuda").stored_rows(bench.products.x.to(dtype), StorePlace.PINNED)
