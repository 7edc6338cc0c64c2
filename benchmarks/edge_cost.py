"""What does a sampled edge cost, from a graph of a million edges to one that fills the memory?

Builds graphs of 15 random edges per node without columns. Samples each with one thread in a process of its
own, in rounds that alternate between the graphs, and plots the median CPU time per sampled edge. A graph of
1.6e9 edges takes 7 GB of disk, and 17 GB while it is built.

usage: python benchmarks/edge_cost.py [--edges 1e6,1e7,1e8,1.6e9] [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from statistics import median

import matplotlib as mpl
from harness import GRAPHS, ROOT, Figure, report
from larger_than_memory import FANOUTS, Runner

mpl.use("Agg")
import matplotlib.pyplot as plt

PLOT = ROOT / "docs" / "edge-cost.png"


def plot(costs: dict[int, float], to: Path) -> None:
    """Draw the cost over the size of the graph."""
    figure, axes = plt.subplots(figsize=(6, 3.2), dpi=120)
    axes.plot(list(costs), list(costs.values()), marker="o")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("edges of the graph")
    axes.set_ylabel("CPU time per sampled edge, ns")
    axes.grid(visible=True, alpha=0.3)
    figure.tight_layout()
    figure.savefig(to, metadata={"Software": None})


def _figure(edges: int, values: list[float], notes: dict[str, float]) -> Figure:
    spread = round(min(values), 1), round(max(values), 1)
    name = f"sampling {FANOUTS}, graph of {edges:.1e} edges: CPU time"
    return Figure(name, round(median(values), 1), "ns/edge", spread=spread, notes=notes)


def main() -> None:
    """Build, sample in rounds, report and plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--edges", default="1e6,1e7,1e8,1.6e9")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    run = Runner(None, {})
    folders = {int(float(size)): GRAPHS / f"edges-{int(float(size))}" for size in given.edges.split(",")}
    for edges, folder in folders.items():
        if not folder.exists():
            run.answer("build", folder, edges)
    found: dict[int, list[float]] = {edges: [] for edges in folders}
    for _ in range(given.rounds):
        for edges, folder in folders.items():
            found[edges].append(run.answer("sampling", folder)["cpu_ns_per_edge"])
    plot({edges: median(values) for edges, values in found.items()}, PLOT)
    load = {"load": round(os.getloadavg()[0], 1)}
    report("edge_cost", [_figure(edges, values, load) for edges, values in found.items()])
    for folder in folders.values():
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
