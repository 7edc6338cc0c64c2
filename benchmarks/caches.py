"""How many rows does a rank fetch from others, with a cache of theirs and without, and how good could it be?

Four parts by khop's own method, batches of 1,024 of a rank's own seeds, fanouts 15,10,5. A cache holds as
many rows as 0.2 or 0.5 of a rank's own, planned before a run of five epochs: by visit probabilities, or by
counting the batches of its first epoch. The oracle keeps the rows that the epochs measured, all five or the
first, turn out to need most often: it has drawn all their batches. All figures are counts of rows, over all
ranks. `cache_bounds.py` compares the plan with caches that change during a run.

usage: python benchmarks/caches.py [graph ...]         (default: products clustered)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import graphs
import torch
from harness import Figure, report
from torch import Tensor

from khop.api.partition import partition_graph
from khop.graph.added_edges import Topology, visit_probabilities
from khop.graph.features.store import CachePlan
from khop.graph.partitions.local_partitions import LocalPartitionGraph
from khop.graph.partitions.parts_folder import map_splits, open_parts
from khop.kernels.owners import IdSlots
from khop.loading.device.device_caching import visit_counts
from khop.loading.source import StepRequests
from khop.sampling.sampler import NeighborSampler
from khop.sampling.seeds import NodeSeeds, SeedOrder

PARTS, SEEDS, FANOUTS = 4, 1024, [15, 10, 5]
EPOCHS = 5  # of a run; a cache is planned once for it
SHARES = (0.2, 0.5)  # of a rank's own rows
NODE, COLUMN = "node", "x"


@dataclass(frozen=True)
class Rank:
    """What one rank needs of others, and what it could know of that before the run."""

    own_rows: int
    steps: int  # of an epoch
    needed: list[Tensor]  # of each epoch of the run: int32 (nodes), batches that need a node of others
    planned: dict[str, Tensor]  # how it would be planned -> expected visits of nodes of others


def rank_of(graph: LocalPartitionGraph, number: int) -> Rank:
    begin, end = graph.folder.book.offsets[NODE][number : number + 2]
    train = map_splits(graph.folder.path, graph.folder.book)["train"][NODE]
    own = train[(train >= begin) & (train < end)]
    order = SeedOrder(NodeSeeds({NODE: own}), SEEDS, shuffle=True, run_seed=1)
    sampler = NeighborSampler(graph, FANOUTS)
    count = {NODE: graph.num_nodes(NODE)}

    def counted(epoch: int) -> Tensor:
        requests = StepRequests(order, epoch, range(order.num_steps))
        return of_others(visit_counts(sampler, requests, count)[NODE])

    def of_others(visits: Tensor) -> Tensor:
        visits[begin:end] = 0
        return visits

    topology = Topology.of_parts(graph.folder.parts)
    chances = visit_probabilities(topology, {NODE: own}, SEEDS, FANOUTS)[NODE]
    needed = [counted(epoch) for epoch in range(EPOCHS)]
    planned = {"visit probabilities": of_others(chances), "counts of the first epoch": needed[0]}
    return Rank(end - begin, order.num_steps, needed, planned)


def kept(graph: LocalPartitionGraph, rank: Rank, visits: Tensor, share: float) -> Tensor:
    """The rows that fit into a cache of a share of the rank's own rows."""
    row_bytes = 4 * math.prod(graph.schema.column(NODE, COLUMN).shape)
    budget = int(share * rank.own_rows) * row_bytes + IdSlots.bytes_for(visits.numel())
    return CachePlan.of(graph.schema, {NODE: (COLUMN,)}, {NODE: visits}, budget).ids[NODE]


def figures_of(name: str, graph: LocalPartitionGraph) -> Iterator[Figure]:
    ranks = []
    for number in range(PARTS):
        ranks.append(rank_of(graph, number))
        print(f"{name}: rank {number} counted", file=sys.stderr)
    steps = sum(rank.steps for rank in ranks) * EPOCHS
    everything = sum(int(needed.sum()) for rank in ranks for needed in rank.needed)
    yield Figure(f"{name}: rows of others a batch needs", round(everything / steps), "rows")
    for share in SHARES:
        oracle = reduction(graph, ranks, share, EPOCHS, None)
        yield Figure(
            f"{name}, cache of {share} of the own rows: oracle of a run", round(oracle, 3), "x fewer"
        )
        for plan in ranks[0].planned:
            found = reduction(graph, ranks, share, EPOCHS, plan)
            what = f"{name}, cache of {share} of the own rows: by {plan}"
            yield Figure(what, round(found, 3), "x fewer")
            yield Figure(f"{what}, over the oracle of a run", round(found / oracle, 3), "")
            once = reduction(graph, ranks, share, 1, plan) / reduction(graph, ranks, share, 1, None)
            yield Figure(f"{what}, over the oracle of one epoch", round(once, 3), "")


def reduction(
    graph: LocalPartitionGraph, ranks: list[Rank], share: float, epochs: int, plan: str | None
) -> float:
    """Rows of others that batches need, over those that are not in the cache; None: what the oracle keeps."""
    needed = missed = 0
    for rank in ranks:
        visits = torch.stack(rank.needed[:epochs]).sum(0)
        ids = kept(graph, rank, visits if plan is None else rank.planned[plan], share)
        needed += int(visits.sum())
        missed += int(visits.sum() - visits[ids].sum())
    return needed / missed


def main() -> None:
    figures: list[Figure] = []
    for name in sys.argv[1:] or ["products", "clustered"]:
        source = Path(graphs.make(name)) / "graph"
        with TemporaryDirectory() as place:
            parts = Path(place) / "parts"
            book = partition_graph(source, parts, PARTS, threads=2)
            figures.append(Figure(f"{name}: share of edges cut", round(book.quality.cut["all"], 4), ""))
            figures.extend(figures_of(name, LocalPartitionGraph(open_parts(parts))))
    report("caches", figures)


if __name__ == "__main__":
    main()
