"""A model of one's own, with torch_geometric's layers: two GATv2 layers on Debian's package graph.

python examples/torch_geometric_layers.py [--epochs 1]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv

import khop


class Attention(nn.Module):
    """A layer gets the rows of a block's sources and destinations, and the edges between them."""

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.inner = GATv2Conv(inputs, hidden // 4, heads=4)
        self.outer = GATv2Conv(hidden, classes)

    def forward(self, batch: khop.Batch) -> Tensor:
        first, second = batch.blocks
        x = batch["x"].float()
        x = F.elu(self.inner((x, x[: first.num_dst]), first.edge_index))
        x = self.outer((x, x[: second.num_dst]), second.edge_index)
        return x[batch.seed_index]


@torch.no_grad()
def accuracy(model: nn.Module, loader: khop.Loader) -> float:
    model.eval()
    right = [model(batch).argmax(1) == batch.seed_column("section") for batch in loader.epoch(0)]
    return torch.cat(right).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=1)
    epochs = parser.parse_args().epochs

    torch.manual_seed(0)
    graph = khop.open_graph(khop.builtin_folder("debian", cache=Path("graphs")))
    sampler = khop.NeighborSampler(graph, fanouts=[4, 4])
    wanted = {"batch_size": 1024, "columns": ["x"], "seed_columns": ["section"]}
    training = khop.Loader(sampler, graph.split("train"), shuffle=True, **wanted)
    validation = khop.Loader(sampler, graph.split("val"), **wanted)

    labels = graph.schema.column("package", "section")
    model = Attention(512, 64, labels.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        model.train()
        for batch in training.epoch(epoch):
            loss = F.cross_entropy(model(batch), batch.seed_column("section"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: validation accuracy {accuracy(model, validation):.3f}")


if __name__ == "__main__":
    main()
