"""Which community is a post of? GraphSAGE on Reddit, data parallel: torch_geometric's tutorial in pure torch.

Its data set where you have it (it is fetched into FOLDER if it is not there), else Debian's package graph.

python examples/reddit.py [--reddit FOLDER] [--epochs 3] [--procs 2]
torchrun --nproc-per-node 2 examples/reddit.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.datasets import Reddit
from torchmetrics import MeanMetric  # pip install torchmetrics

import khop


def graph_folder(reddit: str | None, rank: int) -> Path:
    """Rank 0 makes it where it is not there; all map it, and hold no copy."""
    if reddit is None:
        return khop.builtin_folder("debian", cache=Path("graphs"))
    folder = Path("graphs/reddit")
    if rank == 0 and not folder.exists():
        khop.graph_from_pyg(Reddit(reddit)[0]).save(folder)
    if dist.is_initialized():
        dist.barrier()
    return folder


def train(rank: int, device: torch.device, reddit: str | None, epochs: int) -> None:
    graph = khop.open_graph(graph_folder(reddit, rank))
    task = khop.NodeClassification.of(graph.schema)
    loader = khop.Loader(
        khop.NeighborSampler(graph, fanouts=[25, 10]),
        graph.split("train"),
        batch_size=1024,  # over all ranks
        shuffle=True,
        columns=["x"],
        seed_columns=[task.label],
        device=device,
    )
    torch.manual_seed(12345)
    model = khop.models.SAGE.for_graph(graph, hidden=256, layers=2).to(device)
    model = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        mean = MeanMetric().to(device)
        for batch in loader.epoch(epoch):
            losses = F.cross_entropy(model(batch), batch.seed_column(task.label), reduction="none")
            optimizer.zero_grad()
            batch.global_mean(losses).backward()
            optimizer.step()
            mean.update(losses.detach())
        # Over all neighbors, and by all ranks: none waits for another.
        loss, score = float(mean.compute()), khop.evaluate(model, graph, split="val")
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.6f}, validation accuracy {score:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--reddit", help="root folder of torch_geometric.datasets.Reddit")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--procs", type=int, help="processes; default: one per GPU")
    options = parser.parse_args()
    khop.launch(train, procs=options.procs, arguments=(options.reddit, options.epochs))


if __name__ == "__main__":
    main()
