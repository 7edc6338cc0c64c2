"""What do embeddings cost per step, dense, sparse and sharded, as their table grows?

Users without columns rate 20,000 items; a step of 1,024 items reads the rows of those who rate them, about as
many whatever the table has. The time of a step, on one rank and on two of this machine with a thread each,
and of two the peak memory of one.

    python benchmarks/learned_rows.py [--users 10000 100000 1000000] [--steps 20]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from harness import Figure, report
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import khop

ITEMS, RATERS, WIDTH, SKIPPED = 20_000, 10, 64, 3
KINDS = ("dense", "sparse", "sharded")


def write(folder: Path, users: int) -> Path:
    """Items of ten kinds, each rated by ten users."""
    draw = torch.Generator().manual_seed(0)
    rated = torch.arange(ITEMS).repeat_interleave(RATERS)
    raters = torch.randint(users, (ITEMS * RATERS,), generator=draw)
    items = khop.NodeTable(
        columns={"x": torch.randn(ITEMS, 16, generator=draw), "kind": torch.arange(ITEMS) % 10},
        splits={"train": torch.arange(ITEMS)},
        num_classes={"kind": 10},
    )
    nodes = {"item": items, "user": khop.NodeTable(users)}
    return khop.write_graph(folder, nodes, {("user", "rates", "item"): khop.EdgeTable(raters, rated)})


def measure(rank: int, device: torch.device, folder: str, kind: str, steps: int, out: str) -> None:
    """Train so many steps in a loop of one's own; rank 0 writes down what they took."""
    torch.set_num_threads(1)
    graph = khop.open_graph(folder)
    sampler = khop.NeighborSampler(graph, [RATERS])
    loader = khop.Loader(
        sampler, graph.split("train"), 1024, shuffle=True, columns=["x"], seed_columns=["kind"], threads=1
    )
    torch.manual_seed(0)
    model = khop.models.SAGE.for_graph(graph, hidden=64, layers=1, embedding=WIDTH, embedding_update=kind)
    parallel = DistributedDataParallel(model) if distributed.is_initialized() else model
    optimizers = [torch.optim.Adam([p for p in model.parameters() if p.requires_grad])]
    optimizers += [khop.RowAdam(model)] if kind != "dense" else []
    seconds = []
    for batch in (batch for epoch in range(steps) for batch in loader.epoch(epoch)):
        begun = time.perf_counter()
        losses = F.cross_entropy(parallel(batch), batch.seed_column("kind"), reduction="none")
        for optimizer in optimizers:
            optimizer.zero_grad()
        batch.global_mean(losses).backward()
        for optimizer in optimizers:
            optimizer.step()
        seconds.append(time.perf_counter() - begun)
        if len(seconds) == steps + SKIPPED:
            break
    if rank == 0:
        found: dict[str, object] = {"milliseconds": [1e3 * each for each in seconds[SKIPPED:]]}
        if distributed.is_initialized():  # else the process has measured others before
            (line,) = (s for s in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in s)
            found["peak"] = int(line.split()[1]) / 1024
        Path(out).write_text(json.dumps(found))


def figures_of(what: str, found: dict[str, object]) -> list[Figure]:
    """The time of a step, and the peak where it is known."""
    times = found["milliseconds"]
    low, middle, high = (round(value, 1) for value in statistics.quantiles(times, n=4, method="inclusive"))
    figures = [Figure(f"{what}: a step", middle, "ms", spread=(low, high))]
    if "peak" in found:
        figures.append(Figure(f"{what}: peak memory of one", round(found["peak"]), "MiB"))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--users", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as scratch:
        for users in options.users:
            folder = str(write(Path(scratch, str(users)), users))
            for procs in (1, 2):
                for kind in KINDS[: procs + 1]:  # of one process sharded is sparse
                    out = Path(scratch, "result.json")
                    arguments = (folder, kind, options.steps, str(out))
                    khop.launch(measure, procs=procs, arguments=arguments, device="cpu")
                    what = f"{users:,} users, {procs} process{'es' * (procs > 1)}, {kind}"
                    figures += figures_of(what, json.loads(out.read_text()))
                    print(figures[-1], file=sys.stderr)
    report("learned_rows", figures)


if __name__ == "__main__":
    main()
