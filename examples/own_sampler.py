"""A sampler of one's own: one function that says, layer by layer, which edges carry messages.

What the tutorials of DGL, English and Korean, do by overriding `sample_frontier`. Here the layer at the seeds
draws four neighbors of each node, those below draw two, and from the most connected nodes nothing is drawn.

python examples/own_sampler.py [--graph FOLDER] [--epochs 3] [--procs 2]
torchrun --nproc-per-node 2 examples/own_sampler.py
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torchmetrics import MeanMetric  # pip install torchmetrics
from torchmetrics.classification import MulticlassAccuracy

import khop

LAYERS = 3


def edges_for(
    degrees: Tensor, hub: int, layer: int, graph: khop.FrontierView, nodes: dict[str, Tensor]
) -> dict[tuple[str, str, str], khop.Edges]:
    """Any edges of the graph into `nodes`, which are all nodes so far; layer 2, at the seeds, comes first.

    Draws come from `graph`: then they depend on seed, epoch and node alone, and not on who draws them.
    """
    (node_type,) = nodes
    quiet = nodes[node_type][degrees[nodes[node_type]] < hub]
    return graph.sample_in_edges(quiet, 4 if layer == LAYERS - 1 else 2)


def loader_of(graph: khop.Graph, split: str, label: str, device: torch.device) -> khop.Loader:
    (edge_type,) = graph.schema.edge_types
    degrees = graph.csc(edge_type).indptr.diff()
    hub = int(degrees.double().quantile(0.99)) + 1
    return khop.Loader(
        khop.FrontierSampler(graph, partial(edges_for, degrees, hub), LAYERS),
        graph.split(split),
        batch_size=1024,
        shuffle=split == "train",
        columns=["x"],
        seed_columns=[label],
        device=device,
    )


def train(rank: int, device: torch.device, folder: Path, epochs: int) -> None:
    graph = khop.open_graph(folder)
    task = khop.NodeClassification.of(graph.schema)
    training, validation = (loader_of(graph, split, task.label, device) for split in ("train", "val"))
    classes = graph.schema.column(task.node_type, task.label).num_classes
    torch.manual_seed(0)
    model = khop.models.SAGE.for_graph(graph, hidden=128, layers=LAYERS).to(device)
    model = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        mean, right = MeanMetric().to(device), MulticlassAccuracy(classes, average="micro").to(device)
        model.train()
        for batch in training.epoch(epoch):
            losses = F.cross_entropy(model(batch), batch.seed_column(task.label), reduction="none")
            optimizer.zero_grad()
            batch.global_mean(losses).backward()
            optimizer.step()
            mean.update(losses.detach())
        model.eval()
        with torch.no_grad():
            for batch in validation.epoch(0):  # the same neighborhoods each time, shared by the ranks
                right.update(model(batch), batch.seed_column(task.label))
        loss, score = float(mean.compute()), float(right.compute())
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.6f}, validation accuracy {score:.4f}", flush=True)


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
