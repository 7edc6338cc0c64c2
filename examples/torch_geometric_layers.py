"""A custom model of torch_geometric's convolutions: two GATv2 layers on Debian's package graph.

It is trained on sampled neighborhoods and evaluated exactly, each layer once per node, because its layers
are modules with forward(x, adjacency).

python examples/torch_geometric_layers.py [--epochs 1]
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv

import khop


class Layer(nn.Module):
    """A convolution and its activation: rows of the sources in, rows of the destinations out."""

    def __init__(self, convolution: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.convolution = convolution
        self.activation = activation

    def forward(self, x: Tensor, adjacency: khop.Adjacency) -> Tensor:
        # Destinations are the first sources.
        x = self.convolution((x, x[: adjacency.num_dst]), adjacency.edge_index)
        return self.activation(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=1)
    epochs = parser.parse_args().epochs

    torch.manual_seed(0)
    graph = khop.open_graph(khop.builtin_folder("debian", cache="graphs"))
    sampler = khop.NeighborSampler(graph, fanouts=[4, 4])
    wanted = {"columns": ["x"], "seed_columns": ["section"]}
    training = khop.Loader(sampler, graph.split("train"), batch_size=1024, shuffle=True, **wanted)

    classes = graph.schema.column("package", "section").num_classes
    inner = Layer(GATv2Conv(512, 16, heads=4), nn.ELU())
    outer = Layer(GATv2Conv(64, classes), nn.Identity())
    model = khop.models.Sequential([inner, outer], column="x")
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        for batch in training.epoch(epoch):
            loss = F.cross_entropy(model(batch), batch.seed_column("section"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = khop.evaluate(model, graph, split="val")  # over all neighbors
        print(f"epoch {epoch}: validation accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
