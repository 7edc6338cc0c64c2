"""What ranks do with a graph whose parts they hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import torch
from hypothesis import settings
from torch import Tensor

from khop.api.partition import partition_graph
from khop.distributed.exchange.lanes import Lanes
from khop.distributed.exchange.peers import Message
from khop.distributed.owners import PartitionOwners, RankOwners
from khop.distributed.partitioned_graph import PartitionedGraph
from khop.distributed.processes.group import Group
from khop.draw import DegreeNegatives, DrawKey, Positives, Purpose, UniformNegatives
from khop.graph.folder import open_folder
from khop.graph.partitions.local_partitions import LocalPartitions
from khop.graph.partitions.parts_folder import open_parts
from khop.graph.store import GraphStore, open_csc_graph
from khop.sampling import sampler as neighbor
from khop.sampling.links.links import LinkSampler
from khop.sampling.outputs import Output
from khop.sampling.random_walks import Node2Vec, WalkCounts, random_walks, walk_neighbors
from khop.sampling.rules.labor import Labor
from khop.sampling.rules.sum import RelationMean, Sum, SymmetricSum
from khop.sampling.rules.temporal import Temporal, TemporalStrategy
from khop.sampling.rules.top_k import TopK
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted
from khop.sampling.sampler import Expansion, NeighborSampler
from khop.sampling.seeds import LinkSeeds, SeedLinks, Seeds
from khop.schema import EdgeType
from khop.testing.graph_rules import PROMISES as RULE_PROMISES
from khop.testing.graph_rules import a_wrong_weight_is_named
from khop.testing.graph_store import PROMISES, Make
from khop.testing.graphs import PlainGraph
from processes.feature_ranks import of_the_first
from processes.split_ranks import splits, unprepared
from support.covered import covered
from support.parts_as_whole import GraphAsWhole, OldIds, assert_same
from support.small_typed_folders import BOUGHT, BUYS, LIKE

METHODS = ("ldg", "random")
MADE = Message("making a graph", "id")
RANKS_AND_PARTS = {2: 3, 3: 2}
# Where one rank alone finds an error, others learn of it as of a rank that is lost: see the lanes' tests.
OF_RULES = [promise for promise in RULE_PROMISES if promise is not a_wrong_weight_is_named]
KEPT = {2: PROMISES, 3: (*PROMISES, *OF_RULES)}  # by number of ranks; `make test` runs two
STEP = DrawKey.of(1, Purpose.HOP, 2, 5)
RULES = {
    "uniform": Uniform(),
    "with replacement": Uniform(replacement=True),
    "weighted": Weighted("weight"),
    "temporal": Temporal("time", window=(4000, -10)),
    "latest": Temporal("time", TemporalStrategy.LATEST),
    "temporal and weighted": Temporal("time", inner=Weighted("weight")),
    "labor": Labor(kappa=2),
    "along paths": Temporal("time", window=(None, -1), inner=Weighted("weight"), limit="edge"),
    "temporal and labor": Temporal("time", inner=Labor()),
    "top k": TopK("weight"),
    "relation mean": RelationMean("time"),
    "temporal and relation mean": Temporal("time", inner=RelationMean("time", Labor())),
    "sums": Sum(),
    "normalized sums": SymmetricSum(),
    "weighted, with replacement": Weighted("weight", replacement=True),
}
OF_ALL = ("weighted, with replacement",)  # weights of all neighbors in the last hop

NEGATIVES = {
    "uniform": UniformNegatives(2, exact=True),
    "by degree": DegreeNegatives(3, exact=True),
    "any": UniformNegatives(2),
}

WALKS: dict[str, tuple[list[EdgeType], Node2Vec | None]] = {
    "two types": ([BUYS, BOUGHT] * 2, None),
    "one type": ([LIKE] * 3, None),
    "node2vec": ([LIKE] * 4, Node2Vec(0.25, 4.0)),
}


def methods_of(counts: Sequence[int]) -> Sequence[str]:
    """Return how the graph is cut for these numbers of ranks: in one way for two, which `make test` runs."""
    return METHODS if len(counts) > 1 else METHODS[:1]


def over_ranks(path: Path, group: Group, lanes: Lanes) -> PartitionedGraph:
    """The graph of a folder of parts of which each rank holds its own."""
    parts = open_parts(path).book.num_parts
    holders = PartitionOwners(parts, group.rank, group.world_size)
    return PartitionedGraph(
        LocalPartitions.of(open_parts(path, holders.parts_of(group.rank))), RankOwners(holders, lanes)
    )


def shared_make(home: Path, group: Group, parts: int) -> Make:
    """Makes graphs of which each rank holds parts: rank 0 writes them."""
    numbers, lanes = count(), Lanes(group)

    def make(plain: PlainGraph) -> GraphAsWhole:
        number = next(numbers)
        whole, out = home / f"{number}", home / f"{number}-parts"
        if group.rank == 0:
            partition_graph(plain.written(whole), out, parts, method=("random", "hash")[number % 2])
        lanes.peers.exchange([torch.empty(0, dtype=torch.uint8)] * group.world_size, MADE, 0)
        ids = OldIds(open_folder(whole), open_parts(out))
        return GraphAsWhole(ids, over_ranks(out, group, lanes))

    return make


def kept_promises(group: Group, parts: int, home: Path) -> list[str]:
    """Those of the contract, by ranks that check them side by side."""
    here = home / f"{group.world_size}-{parts}"
    here.mkdir(exist_ok=True)
    make = shared_make(here, group, parts)
    for promise in KEPT[group.world_size]:
        promise(make)
    return [promise.__name__ for promise in KEPT[group.world_size]]


def batches(group: Group, home: Path, methods: Sequence[str]) -> dict[str, int]:
    """Every rank's own seeds, by every rule, over each folder of parts, against one process on the whole.

    Of one folder, every other rule draws a subgraph, and the others draw layers.
    """
    lanes, whole, compared = Lanes(group), open_csc_graph(home / "whole"), {}
    for method in methods:
        graph = over_ranks(home / method, group, lanes)
        ids = OldIds(open_folder(home / "whole"), open_parts(home / method))
        for number, (name, rule) in enumerate(RULES.items()):
            seeds, is_temporal = own_seeds(group.rank)[number], isinstance(rule, Temporal)
            for expansion in Expansion if len(methods) > 1 else [[*Expansion][number % 2]]:
                asked = seeds if is_temporal else replace(seeds, times=None)
                has_weights = rule.has_weights(4) or name in OF_ALL
                is_induced = expansion is Expansion.SUBGRAPH and not is_temporal and not has_weights
                samplers = [
                    NeighborSampler(
                        g,
                        [4, {"user buys item": 3, "*": 2}, -1 if name in OF_ALL else 3],
                        rule=rule,
                        expansion=expansion,
                        edge_ids=True,
                        output=Output.INDUCED if is_induced else Output.DIRECTIONAL,
                    )
                    for g in (whole, graph)
                ]
                renumbered = replace(asked, nodes={t: ids.new_nodes(t, of) for t, of in asked.nodes.items()})
                found = samplers[1].sample(renumbered, STEP)
                assert_same(ids, found, samplers[0].sample(asked, STEP))
                compared[f"{method} {name} {expansion}"] = sum(map(len, found.nodes.values()))
    return compared


def links(group: Group, home: Path, methods: Sequence[str]) -> dict[str, int]:
    """Every rank's own links with exact negatives, against one process on the whole."""
    lanes, whole, compared = Lanes(group), open_csc_graph(home / "whole"), {}
    users = (torch.arange(20 * group.rank % 50) * 7) % 300  # of rank 0 there are none
    items = (users * 11 + group.rank) % 200
    for method in methods:
        graph = over_ranks(home / method, group, lanes)
        ids = OldIds(open_folder(home / "whole"), open_parts(home / method))
        ends = torch.stack([ids.new_nodes("user", users), ids.new_nodes("item", items)])
        for name, negatives in NEGATIVES.items():
            asked = [
                Seeds({}, {}, links=LinkSeeds({BUYS: SeedLinks(of, users + 5, of)}, DrawKey(11)))
                for of in (torch.stack([users, items]), ends)
            ]
            samples = [
                LinkSampler(g, [3, 2], negatives=negatives, edge_ids=True).sample(seeds, DrawKey(2))
                for g, seeds in zip((whole, graph), asked, strict=True)
            ]
            assert_same(ids, samples[1], samples[0])
            compared[f"{method} {name}"] = sum(map(len, samples[1].nodes.values()))
    return compared


def walks(group: Group, home: Path, methods: Sequence[str]) -> dict[str, int]:
    """Walks from every rank's own starts, and neighbors by walks, against one process on the whole."""
    lanes, whole, compared = Lanes(group), open_csc_graph(home / "whole"), {}
    starts = (torch.arange(40 * group.rank) * 7) % 200  # of rank 0 there are none
    for method in methods:
        graph = over_ranks(home / method, group, lanes)
        ids = OldIds(open_folder(home / "whole"), open_parts(home / method))
        for name, (path, bias) in WALKS.items():
            types = [path[0][2], *(edge_type[0] for edge_type in path)]
            there = [ids.new_nodes(types[0], starts), starts]
            found, wanted = (
                random_walks(of, begin, path, bias=bias, seed=3, first=100 * group.rank)
                for of, begin in zip((graph, whole), there, strict=True)
            )
            for node_type, ours, theirs in zip(types, found.T, wanted.T, strict=True):
                assert torch.equal(ours, ids.new_nodes(node_type, theirs))
            compared[f"{method} {name}"] = int((wanted >= 0).sum())
            edges = visits(graph, path, bias, ids.nodes[types[0]])
            assert edges == visits(whole, path, bias, torch.arange(200))
            compared[f"{method} neighbors by {name}"] = len(edges)
    return compared


def visits(
    graph: GraphStore, path: list[EdgeType], bias: Node2Vec | None, old_ids: Tensor
) -> list[tuple[int, ...]]:
    """Of each edge to a node by walks, in old ids: the start, its place among these, the end, and visits."""
    found = []
    for chunk in walk_neighbors(graph, path, WalkCounts(5, keep=4), bias=bias, seed=2).chunks:
        starts = old_ids[torch.as_tensor(chunk.destinations)]
        first = torch.searchsorted(torch.as_tensor(chunk.destinations), torch.as_tensor(chunk.destinations))
        columns = (
            starts,
            torch.arange(starts.numel()) - first,
            old_ids[torch.as_tensor(chunk.sources)],
            torch.as_tensor(chunk.columns["visits"]),
        )
        found += list(zip(*(column.tolist() for column in columns), strict=True))
    return sorted(found)


def nothing_to_draw(group: Group, home: Path) -> str:
    """What each rank says of a source that is connected to all."""
    graph = over_ranks(home / "all", group, Lanes(group))
    asked = Positives(torch.tensor([0, 1]), torch.tensor([0, 1]))
    try:
        graph.sample_negatives(BUYS, UniformNegatives(exact=True), asked, DrawKey(0))
    except ValueError as error:
        return str(error)
    return "nothing"


def own_seeds(rank: int) -> list[Seeds]:
    """Other ones on each rank, and for each rule; none of one type on some."""
    found = []
    for number in range(len(RULES)):
        users = (torch.arange(20 * (rank + number) % 60) * 7 + rank) % 300
        items = (torch.arange(10 + number) * 11 + rank) % 200
        nodes = {"user": users, "item": items}
        times = {t: of * 37 % 9000 for t, of in nodes.items()}
        found.append(
            Seeds(nodes, {t: torch.arange(of.numel()) + 100 * rank for t, of in nodes.items()}, times)
        )
    return found


def collectives(group: Group, home: Path) -> dict[str, float]:
    """Those of a batch with three hops, bounded and not."""
    lanes = Lanes(group)
    graph = over_ranks(home / METHODS[0], group, lanes)
    seeds, counts = replace(own_seeds(group.rank)[1], times=None), {}
    exact, links = UniformNegatives(3, exact=True), Positives(torch.tensor([1]), torch.tensor([0]))
    for name, negatives in {"exact negatives": exact, "others": replace(exact, exact=False)}.items():
        lanes.peers.begin(0, 0, lambda: False)
        graph.sample_negatives(BUYS, negatives, links, DrawKey(0))
        counts[name] = lanes.peers.counts.get("collectives", 0)
    for name, fanouts in {"bounded": [4, 3, 2], "one for all neighbors": [4, -1, 2]}.items():
        lanes.peers.begin(0, 0, lambda: False)
        NeighborSampler(graph, fanouts).sample(seeds, DrawKey(3))
        counts[name] = lanes.peers.counts["collectives"]
    return counts


def another_hop(group: Group, home: Path) -> str:
    """What a rank says whose neighbor draws with another key."""
    lanes = Lanes(group)
    graph = over_ranks(home / METHODS[0], group, lanes)
    try:
        NeighborSampler(graph, [2]).sample(replace(own_seeds(0)[1], times=None), DrawKey(group.rank))
    except ValueError as error:
        return str(error)
    return "nothing"


@covered
def graphs(rank: int, device: torch.device, home: str, counts: tuple[int, ...]) -> None:
    """Everything above, over these numbers of ranks."""
    settings.register_profile("ranks", max_examples=2, derandomize=True, database=None, deadline=None)
    settings.load_profile("ranks")
    neighbor.ROWS_AT_ONCE = 50  # of a store that asks nobody; ranks reach different numbers of nodes
    here, told = Path(home), dict[str, object]()
    for count_ in sorted(RANKS_AND_PARTS.keys() & set(counts)):
        parts = RANKS_AND_PARTS[count_]
        told[f"{count_} ranks, {parts} parts"] = of_the_first(
            count_, partial(kept_promises, parts=parts, home=here)
        )
    methods = methods_of(counts)
    for count_ in counts:
        told[f"{count_} ranks"] = of_the_first(count_, partial(batches, home=here, methods=methods))
        told[f"links of {count_} ranks"] = of_the_first(count_, partial(links, home=here, methods=methods))
        told[f"walks of {count_} ranks"] = of_the_first(count_, partial(walks, home=here, methods=methods))
        dealt = partial(splits, home=here, methods=methods, over_ranks=over_ranks)
        told[f"splits of {count_} ranks"] = of_the_first(count_, dealt)
    told["collectives"] = of_the_first(2, partial(collectives, home=here))
    told["nothing to draw"] = of_the_first(2, partial(nothing_to_draw, home=here))
    told["unprepared"] = of_the_first(2, partial(unprepared, path=here / METHODS[0], over_ranks=over_ranks))
    told["another hop"] = of_the_first(2, partial(another_hop, home=here))
    (here / f"{rank}.json").write_text(json.dumps(told))
