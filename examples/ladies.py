"""LADIES (Zou et al., arXiv 1911.07323): each layer draws some nodes for all of its destinations together.

A node is drawn with probability pi, higher the more it counts for the destinations. Its edges weigh
1 / (degree * pi), the Horvitz-Thompson weights: the mean of a layer's sums over draws is the mean over all
neighbors. khop has no such sampler of its own, because a layer depends on all seeds of the batch: on several
ranks, batches would depend on their number. So this is a loop on one process.

python examples/ladies.py [--graph FOLDER] [--epochs 3] [--nodes 512]
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import khop

LAYERS = 2


def edges_for(
    nodes_per_layer: int, layer: int, graph: khop.FrontierView, nodes: dict[str, Tensor]
) -> khop.Edges:
    """All edges into `nodes` from about `nodes_per_layer` nodes, drawn one by one (Poisson sampling)."""
    (edges,) = graph.in_edges(nodes).values()
    ((node_type, _),) = nodes.items()
    _, rows, degrees = edges.destinations.unique(return_inverse=True, return_counts=True)
    shares = degrees.double().reciprocal()[rows]  # of each edge in the mean over the neighbors of its row
    sources, places = edges.sources.long().unique(return_inverse=True)
    importance = torch.zeros(sources.numel(), dtype=torch.float64).index_add_(0, places, shares**2)
    pi = (nodes_per_layer * importance / importance.sum().clamp(min=1e-30)).clamp(max=1)
    words = graph.random_words(node_type, sources)  # whole numbers below 2^32
    drawn = (words < (pi * 2**32).long())[places]
    weights = (shares / pi[places]).float()
    edge_ids = None if edges.edge_ids is None else edges.edge_ids[drawn]
    return khop.Edges(edges.sources[drawn], edges.destinations[drawn], edge_ids, weights[drawn])


def train(folder: Path, epochs: int, nodes_per_layer: int) -> None:
    graph = khop.open_graph(folder)
    task = khop.NodeClassification.of(graph.schema)
    sampler = khop.FrontierSampler(graph, partial(edges_for, nodes_per_layer), LAYERS)
    loader = khop.Loader(
        sampler, graph.split("train"), batch_size=512, shuffle=True, columns=["x"], seed_columns=[task.label]
    )
    torch.manual_seed(0)
    model = khop.models.SAGE.for_graph(graph, hidden=128, layers=LAYERS)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        losses = []
        for batch in loader.epoch(epoch):
            mean = F.cross_entropy(model(batch), batch.seed_column(task.label))
            optimizer.zero_grad()
            mean.backward()
            optimizer.step()
            losses.append(float(mean.detach()))
        score = khop.evaluate(model, graph, split="val")  # over all neighbors
        print(
            f"epoch {epoch}: loss {sum(losses) / len(losses):.6f}, validation accuracy {score:.4f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--graph", type=Path, help="a graph folder; default: Debian's packages")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=512, help="nodes drawn per layer")
    options = parser.parse_args()
    folder = options.graph or khop.builtin_folder("debian", cache=Path("graphs"))
    train(folder, options.epochs, options.nodes)


if __name__ == "__main__":
    main()
