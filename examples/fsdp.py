"""Fully sharded data parallel: each rank stores a shard of the weights, gradients and moments of Adam.

`fully_shard` takes the place of DistributedDataParallel; the loop stays the same. Exact evaluation calls the
layers one by one, so the weights are gathered into an ordinary model first.

python examples/fsdp.py [--graph FOLDER] [--epochs 3] [--procs 2]
torchrun --nproc-per-node 2 examples/fsdp.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torchmetrics import MeanMetric  # pip install torchmetrics

import khop


def train(rank: int, device: torch.device, folder: Path, epochs: int) -> None:
    graph = khop.open_graph(folder)
    task = khop.NodeClassification.of(graph.schema)
    loader = khop.Loader(
        khop.NeighborSampler(graph, [10, 10]),
        graph.split("train"),
        batch_size=1024,  # over all ranks
        shuffle=True,
        columns=["x"],
        seed_columns=[task.label],
        device=device,
    )
    torch.manual_seed(0)  # the same weights on every rank
    model = khop.models.SAGE.for_graph(graph, hidden=128, layers=2, dropout=0.0).to(device)
    whole = khop.models.SAGE.for_graph(graph, hidden=128, layers=2, dropout=0.0).to(device)
    if dist.is_initialized():
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)  # after sharding: its moments are sharded too
    for epoch in range(epochs):
        mean = MeanMetric().to(device)
        for batch in loader.epoch(epoch):
            losses = F.cross_entropy(model(batch), batch.seed_column(task.label), reduction="none")
            optimizer.zero_grad()
            batch.global_mean(losses).backward()
            optimizer.step()
            mean.update(losses.detach())
        # An all-gather, so every rank takes part: a state dict of whole tensors.
        whole.load_state_dict(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)))
        loss, score = float(mean.compute()), khop.evaluate(whole, graph, split="val")
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.6f}, validation accuracy {score:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--graph", type=Path, help="a graph folder; default: Debian's packages")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--procs", type=int, help="processes; default: one per GPU")
    options = parser.parse_args()
    graph = options.graph or khop.builtin_folder("debian", cache=Path("graphs"))
    khop.launch(train, procs=options.procs, arguments=(graph, options.epochs))


if __name__ == "__main__":
    main()
