"""What does a training step of khop's layers cost, over torch_geometric's convolutions on the same batch?

Steps of GAT (4 heads, 64 wide in all) and SAGE (256 wide), two layers, Adam, on ready batches of [15, 10],
batch 1024, of a graph with 100 input columns. Every round takes one step of each way in turn; the least
processor time of each way counts.

usage: OMP_WAIT_POLICY=passive python benchmarks/convolutions.py [--nodes 200000] [--rounds 10] [--threads 2]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from harness import Figure, report
from torch import Tensor, nn
from torch_geometric.nn import GATConv, SAGEConv

import khop
from khop.batch import Batch
from khop.process_tuning import tune_memory

CLASSES = 47


class Convolutions(nn.Module):
    """The same network of torch_geometric's convolutions."""

    def __init__(self, make: Callable[[int], nn.Module], hidden: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([make(100), make(hidden)])
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, batch: Batch) -> Tensor:
        x = batch["x"]
        for layer, block in zip(self.layers, batch.blocks, strict=True):
            x = layer((x, x[: block.num_dst]), block.edge_index).relu()
        return self.head(x[batch.seed_index])


def gat(inputs: int) -> nn.Module:
    return GATConv((inputs, inputs), 16, heads=4, add_self_loops=False, residual=True)


def sage(inputs: int) -> nn.Module:
    return SAGEConv((inputs, inputs), 256)


def graph_of(nodes: int, home: str) -> khop.Graph:
    random = torch.Generator().manual_seed(0)
    ends = (torch.randint(nodes, (25 * nodes,), generator=random) for _ in range(2))
    columns = {"x": torch.randn(nodes, 100, generator=random), "y": torch.arange(nodes) % CLASSES}
    table = khop.NodeTable(columns=columns, num_classes={"y": CLASSES})
    edges = {("node", "to", "node"): khop.EdgeTable(*ends)}
    return khop.open_graph(khop.write_graph(f"{home}/graph", {"node": table}, edges))


def least_seconds(models: dict[str, nn.Module], batches: list[Batch], rounds: int) -> dict[str, float]:
    """The least processor time of a step, by model."""
    optimizers = {name: torch.optim.Adam(model.parameters()) for name, model in models.items()}
    best = dict.fromkeys(models, float("inf"))
    for number in range(rounds + 1):
        batch = batches[number % len(batches)]
        for name, model in models.items():
            begun = time.process_time()
            loss = F.cross_entropy(model(batch), batch.seed_column("y"))
            optimizers[name].zero_grad()
            loss.backward()
            optimizers[name].step()
            if number:  # the first step allocates
                best[name] = min(best[name], time.process_time() - begun)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    tune_memory()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as home:
        graph = graph_of(given.nodes, home)
        sampler = khop.NeighborSampler(graph, [15, 10])
        loader = khop.Loader(sampler, torch.arange(3072), 1024, columns=["x"], seed_columns=["y"])
        batches = list(loader.epoch(0))
        models = {
            "GAT": khop.models.GAT.for_graph(graph, hidden=64, layers=2, heads=4),
            "GATConv": Convolutions(gat, 64),
            "SAGE": khop.models.SAGE.for_graph(graph, hidden=256, layers=2),
            "SAGEConv": Convolutions(sage, 256),
        }
        best = least_seconds(models, batches, given.rounds)
    figures = [Figure(f"step of {name}: processor time", round(1e3 * s, 1), "ms") for name, s in best.items()]
    for ours, theirs in (("GAT", "GATConv"), ("SAGE", "SAGEConv")):
        ratio = round(best[ours] / best[theirs], 3)
        figures.append(Figure(f"step of {ours} over torch_geometric's {theirs}: processor time", ratio, "x"))
    report("convolutions", figures)


if __name__ == "__main__":
    main()
