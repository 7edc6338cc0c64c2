"""What does a loader over a table of ten million labeled rows cost, compared with plain node seeds?

Both have the same nodes in the same order, so that their batches have the same neighborhoods; those of the
table also carry label, weight and position of each row. CPU time of all threads, in rounds that alternate.

usage: python benchmarks/seed_tables.py [--rows 10000000] [--rounds 7] [--batches 40]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from itertools import islice
from pathlib import Path
from statistics import median

import torch
from harness import Figure, quartiles, report

import khop

NODES, DEGREE, WIDTH = 1_000_000, 10, 32


def write_graph(folder: Path) -> khop.Graph:
    """Write a graph of random edges with float32 columns."""
    generator = torch.Generator().manual_seed(0)
    sources, destinations = torch.randint(NODES, (2, NODES * DEGREE), generator=generator)
    nodes = {"user": khop.NodeTable(columns={"x": torch.randn(NODES, WIDTH, generator=generator)})}
    edges = {("user", "knows", "user"): khop.EdgeTable(sources, destinations)}
    return khop.open_graph(khop.write_graph(folder, nodes, edges))


def cpu_seconds(loader: khop.Loader, batches: int) -> float:
    """Return the CPU time of the first batches of an epoch."""
    start, made = time.process_time(), 0
    for _ in islice(loader, batches):
        made += 1
    assert made == batches
    return time.process_time() - start


def main() -> None:
    """Measure both loaders in turns and report the ratio of their times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=40)
    given = parser.parse_args()
    generator = torch.Generator().manual_seed(1)
    nodes = torch.randint(NODES, (given.rows,), generator=generator)
    labels = torch.randint(2, (given.rows,), generator=generator)
    table = khop.SeedTable(nodes, labels=labels, weights=torch.rand(given.rows, generator=generator))
    found: dict[str, list[float]] = {"node seeds": [], "seed table": []}
    with tempfile.TemporaryDirectory() as home:
        sampler = khop.NeighborSampler(write_graph(Path(home) / "graph"), [15, 10])
        settings = {"batch_size": 1024, "shuffle": True, "threads": 1, "columns": ["x"]}
        loaders = {
            "node seeds": khop.Loader(sampler, nodes, **settings),
            "seed table": khop.Loader(sampler, table, **settings),
        }
        for number in range(given.rounds + 1):
            for name, loader in loaders.items():
                seconds = cpu_seconds(loader, given.batches)
                if number:  # the first round reads the graph
                    found[name].append(seconds)
    ratios = [one / other for one, other in zip(found["seed table"], found["node seeds"], strict=True)]
    notes = {"rows": given.rows, "load": round(os.getloadavg()[0], 1)}
    name = "loader over a seed table: CPU time over node seeds"
    report(
        "seed_tables",
        [Figure(name, round(median(ratios), 3), "ratio", spread=quartiles(ratios), notes=notes)],
    )


if __name__ == "__main__":
    main()
