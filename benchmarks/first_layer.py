"""What does the first layer's aggregation cost, with rows that are gathered ahead and with rows in the table?

Gather and mean of the first layer of SAGE alone, and the whole training step (batch and update, 256 wide, as
many layers as fanouts), by processor time of one thread, for a graph with 100 input columns. Every round
takes both ways in turn; the least time of each counts. Both have the same loss, bit for bit.

usage: python benchmarks/first_layer.py [--nodes 400000] [--rounds 5] [--fanouts 15 10]
"""

from __future__ import annotations

import argparse
import tempfile
import time

import torch
import torch.nn.functional as F
from convolutions import graph_of
from harness import Figure, report

import khop
from khop.kernels.segment import prefix_and_mean
from khop.process_tuning import tune_memory

WAYS = ("ahead", "deferred")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[15, 10, 5])
    given = parser.parse_args()
    tune_memory()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as home:
        graph = graph_of(given.nodes, home)
        sampler = khop.NeighborSampler(graph, given.fanouts)
        columns = {"columns": ["x"], "seed_columns": ["y"]}
        loaders = {
            way: khop.Loader(sampler, torch.arange(1 << 14), 1024, gather=way, **columns) for way in WAYS
        }
        models, best = {}, dict.fromkeys([*WAYS, *(f"layer, {way}" for way in WAYS)], float("inf"))
        for way in WAYS:
            torch.manual_seed(0)
            models[way] = khop.models.SAGE.for_graph(graph, hidden=256, layers=len(given.fanouts))
        optimizers = {way: torch.optim.Adam(model.parameters()) for way, model in models.items()}
        for number in range(given.rounds + 1):
            losses = {}
            for way, model in models.items():
                begun = time.process_time()
                batch = loaders[way].batch(0, number)
                loss = F.cross_entropy(model(batch), batch.seed_column("y"))
                optimizers[way].zero_grad()
                loss.backward()
                optimizers[way].step()
                step, losses[way] = time.process_time() - begun, loss.item()
                adjacency, table = batch.blocks[0].adjacency, graph.columns["node"]["x"]
                begun = time.process_time()
                x = batch["x"] if way == "deferred" else khop.kernels.gather.gather(table, batch.input_nodes)
                prefix_and_mean(x, adjacency.indptr, adjacency.indices)
                layer = time.process_time() - begun
                if number:  # the first step allocates
                    best[way], best[f"layer, {way}"] = min(best[way], step), min(best[f"layer, {way}"], layer)
            assert len(set(losses.values())) == 1, losses
    figures = [Figure(f"{name}: processor time", round(1e3 * s, 1), "ms") for name, s in best.items()]
    for name in ("", "layer, "):
        ratio = round(best[f"{name}deferred"] / best[f"{name}ahead"], 3)
        figures.append(Figure(f"{name or 'step, '}deferred over ahead: processor time", ratio, "x"))
    report("first_layer", figures)


if __name__ == "__main__":
    main()
