"""Stages of gpu.py: limits of the machine, sampling, gathering and aggregation."""

from __future__ import annotations

import time

import gpu_graph
import torch
import torch.nn.functional as F
from gpu_bench import COPY, HIDDEN, LINK, Bench, captured, check_equal, device_ms, kernel_ms, kernel_times
from gpu_roofline import bytes_by_kernel

from khop.kernels.csc import Csc
from khop.kernels.memory import empty_rows
from khop.kernels.triton import gather as device_gather
from khop.kernels.triton import segment
from khop.loading.device.device_memory import memory_of
from khop.loading.device.device_placement import StorePlace

EQUAL_BATCHES = 5


def limits(bench: Bench) -> None:
    """What the machine does at most."""
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_()
    y = torch.empty_like(x)
    bench.copy_gbs = 2 * x.nbytes / device_ms(lambda: y.copy_(x)) / 1e6
    bench.add(COPY, bench.copy_gbs, "GB/s")
    host = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    bench.link_gbs = host.nbytes / device_ms(lambda: y[: host.numel()].copy_(host, non_blocking=True)) / 1e6
    bench.add(LINK, bench.link_gbs, "GB/s")
    for dtype in (torch.bfloat16, torch.float32):
        a = torch.randn(8192, 8192, device="cuda", dtype=dtype)
        torch.backends.cuda.matmul.allow_tf32 = True
        bench.add(
            f"product of 8192, {dtype}", 2 * 8192**3 / device_ms(lambda a=a: a @ a, 10) / 1e9, "TFLOP/s"
        )


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
    moved = bytes_by_kernel(made.sample(*bench.seeds(20)).blocks)
    for name, part in kernel_times(launch).items():
        if name in moved:
            bench.add_moved(f"sample and number: {name}", part / 1e3, moved[name])
        else:
            bench.add(f"sample and number: {name}", part / 1e3, "ms")


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
            ms = kernel_ms(lambda near=near, out=out: device_gather.gather(near, ids, out))
            assert torch.equal(out, near[ids])
            name = f"gather {dtype} {width}".replace("torch.", "")
            bench.add_moved(f"{name}, device", ms, moved, rows=ids.numel())
            ms = kernel_ms(lambda near=near: near.index_select(0, ids))
            bench.add(f"{name}, device, torch.index_select", ms, "ms")
            far = memory_of("cuda").stored_rows(column, StorePlace.PINNED)
            out.zero_()
            ms = kernel_ms(lambda far=far, out=out: device_gather.gather(far, ids, out, is_pinned=True), 4)
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
            name = f"mean of neighbors, layer {number}, {dtype} {width}".replace("torch.", "")
            bench.add_moved(name, ms, moved, edges=edges.indices.numel())
