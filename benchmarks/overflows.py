"""How often does a batch exceed the room that 16 other batches measured, and how much larger is the room?

A products-like graph of 200,000 nodes (see gpu_graph.py), sampled by the CPU: sizes are those of any engine.
Of the batches of each setting, 16 are drawn again and again to measure the room; the others are counted.

usage: python benchmarks/overflows.py [--nodes 200000]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from statistics import fmean

import gpu_graph
import torch
from harness import Figure, report

import khop
from khop.draw import DrawKey, Purpose
from khop.sampling.on_device.capacities import MEASURED, room
from khop.sampling.seeds import Seeds

FANOUTS = ([15, 10, 5], [25, 10], [10, -1])
BATCHES = {64: 500, 256: 500, 1024: 150}  # by seeds
TRIALS = 200
Room = Callable[[Sequence[int]], int]


def sizes(sampler: khop.NeighborSampler, order: torch.Tensor, seeds: int, batches: int) -> torch.Tensor:
    """Return the nodes after each hop, and the edges of hops of all neighbors, of each batch."""
    found = []
    for step in range(batches):
        at = torch.arange(seeds) + step * seeds
        given = Seeds({"node": order[at % order.numel()]}, {"node": at})
        blocks = sampler.sample(given, DrawKey.of(0, Purpose.HOP, 0, step)).blocks
        every = [hop.number for hop in sampler.hops if min(hop.fanouts.values()) < 0]
        edges = [blocks[-number].adjacency.indices.numel() for number in every]
        found.append([*(block.num_src for block in blocks), *edges])
    return torch.tensor(found)


def overflows(found: torch.Tensor, of: Room, measured: int) -> tuple[float, float]:
    """Return the share of batches that exceed the room which others measure, and room over mean."""
    generator, exceeded, counted, ratios = torch.Generator().manual_seed(0), 0, 0, []
    mean = found.double().mean(0)
    for _ in range(TRIALS):
        order = torch.randperm(len(found), generator=generator)
        rooms = torch.tensor([of(column.tolist()) for column in found[order[:measured]].T])
        exceeded += int((found[order[measured:]] > rooms).any(1).sum())
        counted += len(found) - measured
        ratios.append(float((rooms / mean).mean()))
    return exceeded / counted, fmean(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    graph = gpu_graph.products(options.nodes, device="cpu").graph
    order = torch.randperm(options.nodes, generator=torch.Generator().manual_seed(0))
    figures = []
    for fanouts in FANOUTS:
        sampler = khop.NeighborSampler(graph, fanouts)
        for seeds, batches in BATCHES.items():
            found = sizes(sampler, order, seeds, batches)
            share, ratio = overflows(found, room, MEASURED)
            before, _ = overflows(found, lambda counts: int(max(counts) * 1.05 + 1), 4)
            notes = {
                "batches": len(found),
                "room over mean": round(ratio, 3),
                "4 batches and 5 %": round(before, 4),
            }
            figures.append(
                Figure(f"overflows, {fanouts}, {seeds} seeds", round(share, 5), "share", notes=notes)
            )
            print(figures[-1].figure, share, notes, flush=True)
    report("overflows", figures)


if __name__ == "__main__":
    main()
