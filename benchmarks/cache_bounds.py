"""How few rows could a cache of remote rows fetch, if it knew the coming batches?

A batch is a pure function of its step, so the rows of coming batches can be known. This script counts the
rows that a rank fetches from others in 64 steps with caches of one size: the plan that khop makes before a
run, by visit probabilities, and Belady's cache, which after each batch keeps the rows that are needed next.
It knows the batches of a window of K steps, and orders all other rows by visit probabilities; with a window
of the whole run, no cache of its size fetches fewer rows. All caches start with the plan's rows.

The graph has 10^6 nodes with power-law degrees, in 4 and 8 parts by khop's own method; batches have 1,024
seeds of a rank, fanouts 15,10,5. Caches have 5 and 20 % of the rows of the graph. The third case is a graph
with columns on disk: one process reads all rows of its batches from there, with caches of these sizes in
memory.

usage: python benchmarks/cache_bounds.py [--graph medium] [--steps 64]      (a few minutes)
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import graphs
import numpy as np
import torch
from harness import Figure, report
from torch import Tensor

from khop.api.partition import partition_graph
from khop.graph.added_edges import Topology, visit_probabilities
from khop.graph.features.store import CachePlan
from khop.graph.partitions.local_partitions import LocalPartitionGraph
from khop.graph.partitions.parts_folder import map_splits, open_parts
from khop.kernels.owners import IdSlots
from khop.loading.source import StepRequests
from khop.sampling.sampler import NeighborSampler
from khop.sampling.seeds import NodeSeeds, SeedOrder

PARTS, BUDGETS, WINDOWS = (4, 8), (0.05, 0.2), (8, 32)
SEEDS, FANOUTS = 1024, [15, 10, 5]
NODE, COLUMN = "node", "x"
NEVER = 1 << 40  # the step of a row that is not needed any more


@dataclass(frozen=True)
class Rank:
    """The rows that one rank needs from others, or from the disk."""

    visits: Tensor  # float (nodes): expected visits, by which khop plans
    batches: list[Tensor]  # of each step: int64, the nodes whose rows are not local


def rank_of(graph: LocalPartitionGraph, local: range, steps: int) -> Rank:
    """Draw the batches of the seeds among local nodes; of all seeds if no node is local."""
    train = map_splits(graph.folder.path, graph.folder.book)["train"][NODE]
    own = train[(train >= local.start) & (train < local.stop)] if local else train
    order = SeedOrder(NodeSeeds({NODE: own}), SEEDS, shuffle=True, run_seed=1)
    visits = visit_probabilities(Topology.of_parts(graph.folder.parts), {NODE: own}, SEEDS, FANOUTS)[NODE]
    visits[local.start : local.stop] = 0
    sampler, batches = NeighborSampler(graph, FANOUTS), []
    for number in range(steps):
        epoch, step = divmod(number, order.num_steps)
        request = StepRequests(order, epoch, range(step, step + 1))[0]
        nodes = sampler.sample(request.seeds(), request.key).nodes[NODE]
        batches.append(nodes[(nodes < local.start) | (nodes >= local.stop)])
    return Rank(visits, batches)


def planned(graph: LocalPartitionGraph, rank: Rank, budget: float) -> Tensor:
    """Return the rows that khop's plan caches in a share of the rows of the graph."""
    count = rank.visits.numel()
    row_bytes = 4 * math.prod(graph.schema.column(NODE, COLUMN).shape)
    room = int(budget * count) * row_bytes + IdSlots.bytes_for(count)
    return CachePlan.of(graph.schema, {NODE: (COLUMN,)}, {NODE: rank.visits}, room).ids[NODE]


def fetched(rank: Rank, cache: Tensor, window: int) -> int:
    """Count the rows fetched with a cache that starts as `cache` and knows the next `window` batches."""
    following, later = [], torch.full_like(rank.visits, NEVER, dtype=torch.int64)
    for step in reversed(range(len(rank.batches))):
        following.append(later[rank.batches[step]])
        later[rank.batches[step]] = step  # the next step in which each row is needed
    places = torch.empty_like(later)
    places[rank.visits.argsort(descending=True)] = torch.arange(places.numel())
    is_kept = torch.zeros(places.numel(), dtype=torch.bool)
    is_kept[cache] = True
    kept, count = cache, 0
    for step, (ids, then) in enumerate(zip(rank.batches, reversed(following), strict=True)):
        missing = ids[~is_kept[ids]]
        count += missing.numel()
        later[ids] = then
        if window:
            known = torch.cat([kept, missing])
            turns = later[known]
            turns = torch.where(turns <= step + window, turns, NEVER + places[known])
            first = np.argpartition(turns.numpy(), cache.numel() - 1)[: cache.numel()]
            is_kept[kept] = False
            kept = known[torch.from_numpy(first)]
            is_kept[kept] = True
    return count


def figures_of(name: str, graph: LocalPartitionGraph, ranks: list[Rank], steps: int) -> Iterator[Figure]:
    """Yield the rows fetched with each cache over those of the plan, its hit rate, and its gain over none."""
    needed = sum(batch.numel() for rank in ranks for batch in rank.batches)
    yield Figure(f"{name}: rows needed by a batch", round(needed / (steps * len(ranks))), "rows")
    for budget in BUDGETS:
        caches = [planned(graph, rank, budget) for rank in ranks]
        plan = 0
        for window in (0, *WINDOWS, steps):
            count = sum(fetched(rank, cache, window) for rank, cache in zip(ranks, caches, strict=True))
            plan = plan or count
            known = "all batches" if window == steps else f"{window} batches"
            what = f"{name}, {100 * budget:g} % of all rows, " + (f"{known} known" if window else "plan")
            if window:
                yield Figure(f"{what}: rows fetched over the plan's", round(count / plan, 3), "")
            yield Figure(f"{what}: hit rate", round(1 - count / needed, 3), "")
            yield Figure(f"{what}: rows needed over rows fetched", round(needed / count, 2), "x")
            shares = f"{count / plan:.3f}, {1 - count / needed:.3f}, {needed / count:.2f}"
            print(f"{what}: {shares}", file=sys.stderr)


def main() -> None:
    """Draw the batches of all ranks, and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", default="medium", choices=sorted(graphs.SPECS))
    parser.add_argument("--steps", type=int, default=64)
    asked = parser.parse_args()
    figures: list[Figure] = []
    source = Path(graphs.make(asked.graph)) / "graph"
    for parts in PARTS:
        with TemporaryDirectory() as place:
            partition_graph(source, Path(place) / "parts", parts, threads=2)
            graph = LocalPartitionGraph(open_parts(Path(place) / "parts"))
            bounds = graph.folder.book.offsets[NODE]
            ranks = [rank_of(graph, range(*bounds[n : n + 2]), asked.steps) for n in range(parts)]
            figures.extend(figures_of(f"{parts} parts", graph, ranks, asked.steps))
            if parts == PARTS[-1]:
                ranks = [rank_of(graph, range(0), asked.steps)]
                figures.extend(figures_of("columns on disk", graph, ranks, asked.steps))
    report("cache_bounds", figures)


if __name__ == "__main__":
    main()
