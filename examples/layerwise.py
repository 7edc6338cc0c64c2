"""Layer-wise inference for a model of one's own: every layer over all nodes before the next begins.

What torch_geometric's tutorial in vanilla torch does for Reddit: the model learns from samples and is scored
exactly, over all neighbors. All ranks share the nodes of every layer.

python examples/layerwise.py [--graph FOLDER] [--epochs 4] [--procs 2]
torchrun --nproc-per-node 2 examples/layerwise.py
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import SAGEConv

import khop

EVERY = 2  # epochs between evaluations


class SAGE(nn.Module):
    """The five names below `forward` are what khop asks of a model to run it layer by layer."""

    num_layers = 2

    def __init__(self, node_type: str, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.input_columns: Mapping[str, tuple[str, ...]] = {node_type: ("x",)}
        self.convolutions = nn.ModuleList([SAGEConv(inputs, hidden), SAGEConv(hidden, classes)])

    def forward(self, batch: khop.Batch) -> Tensor:
        ((node_type, index),) = batch.sample.seed_index.items()
        h = self.encode(batch)
        for number, block in enumerate(batch.blocks):
            h = self.layer(number, h, block)
        return self.head(node_type, h[node_type][index])

    def encode(self, batch: khop.Batch) -> dict[str, Tensor]:
        return {node_type: batch[node_type, "x"].float() for node_type in self.input_columns}

    def layer(self, index: int, h: Mapping[str, Tensor], block: khop.Block) -> dict[str, Tensor]:
        ((node_type, rows),) = h.items()
        rows = self.convolutions[index]((rows, rows[: block.num_dst]), block.edge_index)
        if index == 0:
            rows = F.dropout(rows.relu(), p=0.5, training=self.training)
        return {node_type: rows}

    def head(self, node_type: str, h: Tensor) -> Tensor:
        return h


def train(rank: int, device: torch.device, folder: Path, epochs: int) -> None:
    graph = khop.open_graph(folder)
    task = khop.NodeClassification.of(graph.schema)
    label = graph.schema.column(task.node_type, task.label)
    sampler = khop.NeighborSampler(graph, fanouts=[25, 10])
    wanted = {"columns": ["x"], "seed_columns": [task.label], "device": device}
    loader = khop.Loader(sampler, graph.split("train"), batch_size=1024, shuffle=True, **wanted)
    torch.manual_seed(12345)
    (inputs,) = graph.schema.column(task.node_type, "x").shape
    model = SAGE(task.node_type, inputs, 256, label.num_classes).to(device)
    parallel = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.Adam(parallel.parameters(), lr=1e-3)
    for epoch in range(epochs):
        for batch in loader.epoch(epoch):
            losses = F.cross_entropy(parallel(batch), batch.seed_column(task.label), reduction="none")
            optimizer.zero_grad()
            batch.global_mean(losses).backward()
            optimizer.step()
        if epoch % EVERY == EVERY - 1:  # on every rank: they share the work
            scores = {s: khop.evaluate(parallel, graph, split=s) for s in graph.split_names}
            if rank == 0:
                told = ", ".join(f"{split} {score:.4f}" for split, score in scores.items())
                print(f"epoch {epoch}: accuracy {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--graph", type=Path, help="a graph folder; default: Debian's packages")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--procs", type=int, help="processes; default: one per GPU")
    options = parser.parse_args()
    folder = options.graph or khop.builtin_folder("debian", cache=Path("graphs"))
    khop.launch(train, procs=options.procs, arguments=(folder, options.epochs))


if __name__ == "__main__":
    main()
