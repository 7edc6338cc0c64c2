"""A small shop whose links are seeds: purchases, their reverses, and views."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from khop.batch import Sample
from khop.draw import DrawKey
from khop.graph.store import CscGraph, csc_graph_from_edges
from khop.sampling.seeds import LinkSeeds, SeedLinks, Seeds

NEGATIVE_KEY = DrawKey(12)
BUYS, BOUGHT_BY, VIEWS = ("user", "buys", "item"), ("item", "bought by", "user"), ("user", "views", "item")


def link_seeds(
    edges: dict[tuple[str, str, str], list[tuple[int, int]]], first: int = 0, **facts: Tensor
) -> Seeds:
    """Links of one batch, positions from `first` on."""
    by_type = {}
    for edge_type, pairs in edges.items():
        ends = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T
        by_type[edge_type] = SeedLinks(ends, torch.arange(first, first + len(pairs)), ends, **facts)
        first += len(pairs)
    return Seeds({}, {}, links=LinkSeeds(by_type, NEGATIVE_KEY))


def shop() -> CscGraph:
    """A user buys every item of the same parity and the next, and views all; both ways for what is bought."""
    buys = [
        (user, item) for user in range(8) for item in range(6) if user % 2 == item % 2 or item == user + 1
    ]
    users, items = torch.tensor(buys).T
    everything = torch.cartesian_prod(torch.arange(8), torch.arange(6)).T
    graph = csc_graph_from_edges(
        {"user": 8, "item": 6},
        {BUYS: (users, items), BOUGHT_BY: (items, users), VIEWS: (everything[0], everything[1])},
    )
    return replace(graph, schema=replace(graph.schema, reverse_of={BUYS: BOUGHT_BY, BOUGHT_BY: BUYS}))


def bought(pairs: list[tuple[int, int]]) -> CscGraph:
    """Six users, four items, the given purchases, and their reverses, which name the purchases."""
    users, items = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T
    edges = {BUYS: (users, items), BOUGHT_BY: (items, users)}
    graph = csc_graph_from_edges({"user": 6, "item": 4}, edges)
    return replace(graph, schema=replace(graph.schema, reverse_of={BOUGHT_BY: BUYS}))


def ends(sample: Sample, edge_type: tuple[str, str, str]) -> list[tuple[int, int]]:
    """The global ids of the pairs of a type, read the way a model would."""
    rows = sample.links[edge_type]
    nodes = {t: sample.nodes[t][index] for t, index in sample.seed_index.items()}
    sources, destinations = nodes[edge_type[0]][rows.source], nodes[edge_type[2]][rows.destination]
    return list(zip(sources.tolist(), destinations.tolist(), strict=True))
