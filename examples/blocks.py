"""Blocks in a loop of one's own: what DGL's tutorial on several GPUs does, on any number of processes.

A loader yields input nodes, output nodes and one block per layer; torch_geometric's layers take a block and
its rows; DistributedDataParallel averages. The best weights on the validation split are kept.

python examples/blocks.py [--graph FOLDER] [--epochs 3] [--procs 2]
torchrun --nproc-per-node 2 examples/blocks.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import SAGEConv
from torchmetrics import MeanMetric  # pip install torchmetrics

import khop

FANOUTS = [4, 4, 4]


class SAGE(nn.Module):
    """A layer hears the rows of a block's sources, of which the first are its destinations."""

    def __init__(self, hidden: int, classes: int) -> None:
        super().__init__()
        widths = [hidden] * (len(FANOUTS) - 1) + [classes]
        self.layers = nn.ModuleList(SAGEConv((-1, -1), width) for width in widths)

    def forward(self, batch: khop.Batch) -> Tensor:
        x = batch["x"].float()
        for layer, block in zip(self.layers, batch.blocks, strict=True):
            x = layer((x, x[: block.num_dst]), block.edge_index)
            x = x.relu() if layer is not self.layers[-1] else x
        return x[batch.seed_index]


def train(rank: int, device: torch.device, folder: Path, epochs: int) -> None:
    graph = khop.open_graph(folder)  # mapped: all processes of a machine share its pages
    task = khop.NodeClassification.of(graph.schema)
    loader = khop.Loader(
        khop.NeighborSampler(graph, FANOUTS),
        graph.split("train"),
        batch_size=1024,  # over all ranks, which share every batch; no seed is left out, none used twice
        shuffle=True,
        columns=["x"],
        seed_columns=[task.label],
        device=device,
    )
    classes = graph.schema.column(task.node_type, task.label).num_classes
    model = SAGE(hidden=128, classes=classes).to(device)
    khop.initialize(model, loader)  # the layers learn their widths, before DDP looks at them
    parallel = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.Adam(parallel.parameters(), lr=3e-3)
    best = 0.0
    for epoch in range(epochs):
        mean = MeanMetric().to(device)  # over the seeds of all ranks
        for step, batch in enumerate(loader.epoch(epoch)):
            losses = F.cross_entropy(parallel(batch), batch.seed_column(task.label), reduction="none")
            optimizer.zero_grad()
            batch.global_mean(losses).backward()
            optimizer.step()
            mean.update(losses.detach())
            if step % 10 == 9 and rank == 0:
                share = f"{len(batch.seeds)} seeds from {len(batch.input_nodes)} input nodes"
                print(f"epoch {epoch}, step {step}: rank 0 {losses.mean():.4f}, {share}", flush=True)
        loss, score = float(mean.compute()), khop.evaluate(parallel, graph, split="val", fanouts=FANOUTS)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.6f}, validation accuracy {score:.4f}", flush=True)
            if score > best:
                save_file(model.state_dict(), "blocks.safetensors")
        best = max(best, score)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--graph", type=Path, help="a graph folder; default: Debian's packages")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--procs", type=int, help="processes; default: one per GPU")
    options = parser.parse_args()
    folder = options.graph or khop.builtin_folder("debian", cache=Path("graphs"))
    khop.launch(train, procs=options.procs, arguments=(folder, options.epochs))


if __name__ == "__main__":
    main()
