"""Stages of gpu.py: loaders and the trainer, the first batch of a new process, and epochs beside PyG."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from gpu_bench import BATCH, EPOCH_STEPS, FANOUTS, HIDDEN, WARM_UP, Bench, check_equal, device_ms, same
from gpu_training import Features, device_column, epoch, prepared
from harness import HERE
from torch import Tensor, nn

import khop
from khop.batch import Batch
from khop.training.tasks import NodeClassification

PYG_STEPS, PYG_FIRST = 40, 5  # measured, and before that
SAMPLERS = ("pyg_lib", "torch_sparse")


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
        same(found["x"].cpu(), expected["x"])
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


def first(bench: Bench) -> None:
    """The first batch and the first gradients of a new process, with an empty and a full cache of kernels."""
    with tempfile.TemporaryDirectory() as folder:
        for cache in ("cold", "warm"):
            done = subprocess.run(
                [sys.executable, str(HERE / "gpu_first.py"), "--nodes", str(min(bench.nodes, 200_000))],
                env={**os.environ, "TRITON_CACHE_DIR": folder},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            found = json.loads(done.stdout.splitlines()[-1])
            for part, seconds in found.items():
                bench.add(f"{part} with a {cache} kernel cache", seconds, "s")


def pyg(bench: Bench) -> None:
    """An epoch of PyG's NeighborLoader and GraphSAGE, and of khop's captured steps, both in float32."""
    what = "epoch of PyG's NeighborLoader and GraphSAGE"
    reason = why_no_pyg()
    if reason is not None:
        bench.add(f"{what}: runs here", 0.0, "", reason=reason)
        return
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.nn import GraphSAGE

    products = bench.products
    owners = torch.repeat_interleave(torch.arange(bench.nodes), products.csc.indptr.diff())
    data = Data(x=products.x, y=products.y, edge_index=torch.stack([products.csc.indices.long(), owners]))
    workers = max(1, (os.cpu_count() or 1) - 2)
    loader = NeighborLoader(
        data,
        FANOUTS,
        input_nodes=products.train,
        batch_size=BATCH,
        shuffle=True,
        is_sorted=True,
        num_workers=workers,
        pin_memory=True,
    )
    model = GraphSAGE(data.num_features, HIDDEN, num_layers=3, out_channels=int(data.y.max()) + 1)
    theirs = pyg_step_s(loader, model, torch.device("cuda")) * EPOCH_STEPS
    own = (
        epoch(bench, prepared(bench, Features(device_column(bench, torch.float32)))).step_ms
        * EPOCH_STEPS
        / 1e3
    )
    bench.add("epoch of captured steps, float32, beside PyG", own, "s")
    bench.add(what, theirs, "s", ("khop is faster by", theirs / own), workers=workers, steps=PYG_STEPS)


def why_no_pyg() -> str | None:
    """The reason why PyG's samplers do not run here; None: they do."""
    missing = {}
    for name in ("torch_geometric", *SAMPLERS):
        try:
            importlib.import_module(name)
        except (ImportError, OSError, RuntimeError) as error:  # built for another torch
            missing[name] = f"{name}: {error}"
    if "torch_geometric" in missing:
        return missing["torch_geometric"]
    return "; ".join(missing.values()) if len(missing) == len(SAMPLERS) else None


def pyg_step_s(loader: Iterable, model: nn.Module, device: torch.device) -> float:
    """Seconds per step, as PyG's tutorials train, after the first steps."""
    model = model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    begun, steps = 0.0, 0
    for batch in islice(loader, PYG_FIRST + PYG_STEPS):
        if steps == PYG_FIRST:
            begun = time.perf_counter()
        steps += 1
        batch = batch.to(device, non_blocking=True)
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y[: batch.batch_size])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
    return (time.perf_counter() - begun) / (steps - PYG_FIRST)
