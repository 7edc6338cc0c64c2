"""How does the cost per sampled edge move with threads, batch size, fanout and graph size?

Subgraph expansion, without replacement, no edge ids, khop alone: `value` is nanoseconds per sampled edge.
Graphs are random
with in-degree 50 (uniform sources: no locality, the worst case for caches) and are made and dropped one
after another; the
largest that fits the given memory is the last.

usage: python benchmarks/scaling.py [--largest 1e8] [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time

import numpy as np
import torch
from harness import Figure, report

import khop
from khop.draw import DrawKey, Purpose
from khop.graph.store import CscGraph
from khop.kernels.csc import Csc

DEGREE = 50
EDGE_TYPE = ("node", "to", "node")


def random_graph(num_edges: int) -> CscGraph:
    """In-degree 50 everywhere, sources uniform."""
    nodes = num_edges // DEGREE
    sources = np.random.default_rng(0).integers(0, nodes, num_edges, dtype=np.int32)
    indptr = torch.arange(0, num_edges + 1, DEGREE)
    schema = khop.Schema(("node",), (EDGE_TYPE,))
    return CscGraph(schema, {"node": nodes}, {EDGE_TYPE: Csc(indptr, torch.from_numpy(sources))})


def ns_per_edge(graph: CscGraph, fanouts: list[int], batch_size: int, threads: int = 1) -> float:
    """Wall nanoseconds per sampled edge, median over batches (of all threads together)."""
    torch.set_num_threads(1)
    sampler = khop.NeighborSampler(graph, fanouts, expansion=khop.Expansion.SUBGRAPH)
    num_nodes = graph.num_nodes("node")
    size = min(batch_size, num_nodes)

    def one(step: int) -> tuple[float, int]:
        ids = torch.randint(num_nodes, (size,), generator=torch.Generator().manual_seed(step))
        seeds = khop.Seeds({"node": ids}, {"node": torch.arange(size)})
        started = time.perf_counter()
        sample = sampler.sample(seeds, DrawKey.of(0, Purpose.HOP, 0, step))
        assert sample.subgraph is not None
        return time.perf_counter() - started, sum(sample.subgraph.edges_per_hop[EDGE_TYPE])

    for step in range(3):
        one(step)
    if threads == 1:
        times = [one(step) for step in range(3, 18)]
        return 1e9 * statistics.median(seconds / edges for seconds, edges in times)
    edges = one(3)[1]
    workers = [threading.Thread(target=lambda: [one(step) for step in range(3, 18)]) for _ in range(threads)]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return 1e9 * (time.perf_counter() - started) / (15 * threads * edges)


def median_of(rounds: int, graph: CscGraph, fanouts: list[int], batch_size: int, threads: int = 1) -> float:
    return round(
        statistics.median(ns_per_edge(graph, fanouts, batch_size, threads) for _ in range(rounds)), 2
    )


def sizes(largest: float) -> list[int]:
    """1e5, 3e5, 1e6, ... edges, up to the largest."""
    steps = [base * 10**power for power in range(5, 12) for base in (1, 3)]
    return [step for step in steps if step <= largest]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--largest", type=float, default=1e8)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    figures = []

    def measured(figure: str, value: float) -> None:
        figures.append(Figure(figure, value, "ns/edge"))
        print(f"{figure:<40} {value:8.2f} ns/edge", flush=True)

    for num_edges in sizes(arguments.largest):
        graph = random_graph(num_edges)
        measured(f"graph of {num_edges:.0e} edges", median_of(arguments.rounds, graph, [15, 10, 5], 1024))
    for batch_size in (64, 256, 1024, 4096, 16384):
        measured(f"batch of {batch_size}", median_of(arguments.rounds, graph, [15, 10, 5], batch_size))
    for fanouts in ([5], [25], [25, 10], [10, 10, 10], [15, 10, 5], [5, 5, 5, 5]):
        measured(f"fanouts {fanouts}", median_of(arguments.rounds, graph, fanouts, 1024))
    for threads in (1, 2, 4):
        measured(f"{threads} threads", median_of(arguments.rounds, graph, [15, 10, 5], 1024, threads))
    report("scaling", figures)


if __name__ == "__main__":
    main()
