"""Loaders of every kind of batch over a graph, so that two ways of making batches can be compared."""

from __future__ import annotations

from collections.abc import Callable

import torch

import khop
from khop.models import SAGE, LinkPredictor
from support.small_typed_folders import BUYS, LIKE

ITEM = "item"
SEED = 11


def plain_nodes(graph: khop.Graph) -> khop.Loader:
    """Nodes of one type, shuffled, with columns of all rows and of the seeds."""
    sampler = khop.NeighborSampler(graph, [3, 2])
    return _split(sampler, graph, columns=["x", "category"], seed_columns=["category"], shuffle=True)


def plain_subgraph(graph: khop.Graph) -> khop.Loader:
    """One graph per batch, and the last short step left out."""
    sampler = khop.NeighborSampler(graph, [3, 2], expansion=khop.Expansion.SUBGRAPH, edge_ids=True)
    return _split(sampler, graph, columns=["x"], drop_last=True)


def both_directions(graph: khop.Graph) -> khop.Loader:
    """Drawn edges and their reverses."""
    sampler = khop.NeighborSampler(
        graph, [3, 2], expansion=khop.Expansion.SUBGRAPH, output=khop.Output.BIDIRECTIONAL, edge_ids=True
    )
    return _split(sampler, graph)


def induced(graph: khop.Graph) -> khop.Loader:
    """All edges among the nodes."""
    sampler = khop.NeighborSampler(
        graph, [3, 2], expansion=khop.Expansion.SUBGRAPH, output=khop.Output.INDUCED
    )
    return _split(sampler, graph, columns=["x"])


def without_columns(graph: khop.Graph) -> khop.Loader:
    """Nothing but the sample, for seeds that the client has."""
    return khop.Loader(khop.NeighborSampler(graph, [-1]), torch.arange(0, 600, 7), 16, seed=SEED)


def typed_nodes(graph: khop.Graph) -> khop.Loader:
    """Several node and edge types, edge columns, narrow columns and seeds of two types."""
    sampler = khop.NeighborSampler(graph, [{BUYS: 4, "*": 2}, 3], edge_ids=True)
    columns = {"user": ["x", "age"], ITEM: ["price"], BUYS: ["time", "weight"]}
    return khop.Loader(
        sampler, graph.split("train"), 32, shuffle=True, seed=SEED, columns=columns, seed_columns=["age"]
    )


def as_stored(graph: khop.Graph) -> khop.Loader:
    """Columns in their stored dtype."""
    sampler = khop.NeighborSampler(graph, [3], rule=khop.Uniform(replacement=True))
    return khop.Loader(sampler, graph.split("val"), 16, seed=SEED, columns={"user": ["x"]}, narrow="stored")


def disjoint(graph: khop.Graph) -> khop.Loader:
    """A tree for each seed."""
    sampler = khop.NeighborSampler(graph, [3, 2], trees="disjoint", expansion=khop.Expansion.SUBGRAPH)
    return khop.Loader(sampler, graph.split("train"), 32, shuffle=True, seed=SEED, columns={"user": ["x"]})


def temporal(graph: khop.Graph) -> khop.Loader:
    """Edges until the time of each seed."""
    rule = khop.Temporal("time", window=(9000, 0), inner=khop.Weighted("weight"))
    sampler = khop.NeighborSampler(graph, [4, 3], rule=rule, edge_ids=True)
    times = {"user": torch.arange(40) * 250}
    return khop.Loader(
        sampler, {"user": torch.arange(40)}, 8, seed=SEED, seed_times=times, columns={BUYS: ["time"]}
    )


def along_paths(graph: khop.Graph) -> khop.Loader:
    """Edges until the edge before, and the time between them; a row for each drawn edge."""
    rule = khop.Temporal("time", window=(None, -1), limit="edge")
    times = {"user": torch.arange(40) * 250}
    sampler = khop.NeighborSampler(graph, [4, 3], rule=rule)
    return khop.Loader(sampler, {"user": torch.arange(40)}, 8, seed=SEED, seed_times=times)


def times_of_a_column(graph: khop.Graph) -> khop.Loader:
    """Edges until the time of each seed, which is a column of the seeds."""
    rule = khop.Temporal("time", strategy=khop.TemporalStrategy.LATEST)
    sampler = khop.NeighborSampler(graph, [4], rule=rule)
    return khop.Loader(sampler, graph.split("val"), 16, shuffle=True, seed=SEED, seed_times="age")


def weighted(graph: khop.Graph) -> khop.Loader:
    """Edges by weight, with replacement."""
    rule = khop.Weighted("weight", replacement=True)
    sampler = khop.NeighborSampler(graph, [{BUYS: 4, "*": 2}, 3], rule=rule)
    return khop.Loader(sampler, {ITEM: "all"}, 32, shuffle=True, seed=SEED, columns={ITEM: ["price"]})


def labor(graph: khop.Graph) -> khop.Loader:
    """Numbers that rows share and keep for three steps."""
    sampler = khop.NeighborSampler(graph, [{BUYS: 4, "*": 2}, 3], rule=khop.Labor(kappa=3))
    return khop.Loader(sampler, {ITEM: "all"}, 32, shuffle=True, seed=SEED, columns={ITEM: ["price"]})


def links(graph: khop.Graph) -> khop.Loader:
    """Links with drawn negatives, labeled 0; links of the step carry no message."""
    sampler = khop.LinkSampler(
        graph, [3, 2], negatives=khop.UniformNegatives(2, exact=True), exclude="edge+reverse"
    )
    given = khop.Links({BUYS: _ends(300, 200, 50), LIKE: _ends(200, 200, 30)})
    return khop.Loader(sampler, given, 16, shuffle=True, seed=SEED, columns={"user": ["x"], ITEM: ["price"]})


def triplets(graph: khop.Graph) -> khop.Loader:
    """Links with labels, and negatives by degree beside them, in disjoint trees."""
    negatives = khop.DegreeNegatives(3, mode=khop.NegativeMode.TRIPLET)
    sampler = khop.LinkSampler(graph, [2], negatives=negatives, trees="disjoint")
    given = khop.Links({BUYS: _ends(300, 200, 40)}, labels={BUYS: torch.arange(80.0).view(40, 2)})
    return khop.Loader(sampler, given, 16, seed=SEED)


def links_with_times(graph: khop.Graph) -> khop.Loader:
    """Links with times and negatives of their own."""
    sampler = khop.LinkSampler(graph, [3], negatives=khop.GivenNegatives(), rule=khop.Temporal("time"))
    ends = _ends(300, 200, 40)
    given = khop.Links({BUYS: ends}, times={BUYS: ends[0] * 30}, negatives={BUYS: ends[1:].T.repeat(1, 2)})
    return khop.Loader(sampler, given, 16, seed=SEED)


def both_ends(graph: khop.Graph) -> khop.Loader:
    """Links with two kinds of negatives at both ends; links of nodes with few edges carry no message."""
    kinds = (khop.UniformNegatives(2, group=4, corrupt="both"), khop.DegreeNegatives(1, corrupt="both"))
    sampler = khop.LinkSampler(
        graph,
        [2, 2],
        negatives=khop.MixedNegatives(kinds),
        exclude=khop.SpotTarget(5),
        rule=khop.TopK("time"),
    )
    return khop.Loader(sampler, khop.Links({BUYS: _ends(300, 200, 40)}), 16, shuffle=True, seed=SEED)


PLAIN: tuple[Callable[[khop.Graph], khop.Loader], ...] = (
    plain_nodes,
    plain_subgraph,
    both_directions,
    induced,
    without_columns,
)
TYPED: tuple[Callable[[khop.Graph], khop.Loader], ...] = (
    typed_nodes,
    as_stored,
    disjoint,
    temporal,
    along_paths,
    times_of_a_column,
    weighted,
    labor,
    links,
    triplets,
    links_with_times,
    both_ends,
)


def _split(
    sampler: khop.NeighborSampler,
    graph: khop.Graph,
    *,
    columns: list[str] | tuple[()] = (),
    seed_columns: list[str] | tuple[()] = (),
    shuffle: bool = False,
    drop_last: bool = False,
) -> khop.Loader:
    return khop.Loader(
        sampler,
        graph.split("train"),
        32,
        shuffle=shuffle,
        drop_last=drop_last,
        seed=SEED,
        columns=columns,
        seed_columns=seed_columns,
    )


def _ends(sources: int, destinations: int, count: int) -> torch.Tensor:
    numbers = torch.arange(count)
    return torch.stack([numbers * 17 % sources, numbers * 13 % destinations])


def loaders_of_split(graph: khop.Graph) -> list[khop.Loader]:
    """Training links with drawn negatives, and validation links with those of a split."""
    split = khop.split_links(graph, BUYS, 0.2, 30, negatives=3, time="time", disjoint_share=0.3, seed=4)
    sampler = khop.LinkSampler(
        split.train, [3], negatives=khop.UniformNegatives(), rule=khop.Temporal("time")
    )
    given = khop.LinkSampler(split.val, [3], negatives=khop.GivenNegatives(), rule=khop.Temporal("time"))
    return [
        khop.Loader(sampler, split.train_links, 64, shuffle=True, columns={"user": ["x"]}),
        khop.Loader(given, split.val_links, 64, columns={"user": ["x"]}),
    ]


def link_scores(graph: khop.Graph, fanouts: list[int] | None) -> dict[str, float]:
    """Scores of an untrained predictor of links."""
    split = khop.split_links(graph.only([BUYS, LIKE]), BUYS, 0.1, 0.1, negatives=5, seed=2)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        encoder = SAGE.for_graph(
            split.train, hidden=8, layers=1, target=["user", "item"], outputs=5, embedding=4
        )
        predictor = LinkPredictor.of(encoder, [BUYS], "dot", 5)
    return khop.evaluate_links(predictor, split.val, split.val_links, fanouts=fanouts)
