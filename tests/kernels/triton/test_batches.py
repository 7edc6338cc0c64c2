"""Whole batches whose draws are Triton's equal those of the CPU core, for every rule."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from khop import DrawKey, Expansion, NeighborSampler, Seeds, Temporal, TemporalStrategy, Uniform, Weighted
from khop.graph.rule import Rule
from khop.graph.store import CscGraph, csc_graph_from_edges
from khop.kernels.choice import Engine, forcing
from reference.hops import as_plain

BUYS, BOUGHT_BY = ("user", "buys", "item"), ("item", "bought by", "user")
USERS, ITEMS, EDGES = 40, 25, 300
RULES = {
    "uniform": Uniform(),
    "replacement": Uniform(replacement=True),
    "weighted": Weighted("weight"),
    "temporal": Temporal("time"),
    "window": Temporal("time", window=(40, -1), inner=Weighted("weight")),
    "latest": Temporal("time", TemporalStrategy.LATEST),
}


def numbers(count: int, factor: int, bound: int) -> Tensor:
    return torch.arange(count) * factor % bound


def graph() -> CscGraph:
    users, items = numbers(EDGES, 7919, USERS), numbers(EDGES, 104_729, ITEMS)
    columns = {
        BUYS: {"time": numbers(EDGES, 31, 90), "weight": numbers(EDGES, 17, 5)},
        BOUGHT_BY: {"weight": numbers(EDGES, 13, 4)},
        "item": {"time": numbers(ITEMS, 11, 90)},
    }
    edges = {BUYS: (users, items), BOUGHT_BY: (items, users)}
    return csc_graph_from_edges({"user": USERS, "item": ITEMS}, edges, columns=columns, sort_by="time")


def seeds(rule: Rule) -> Seeds:
    """Items and users, some twice; times for rules that need them."""
    nodes = {"item": torch.tensor([3, 20, 3, 9]), "user": torch.tensor([7, 0])}
    positions = {"item": torch.arange(4), "user": torch.arange(4, 6)}
    if not isinstance(rule, Temporal):
        return Seeds(nodes, positions)
    return Seeds(nodes, positions, {"item": torch.tensor([80, 35, 5, 60]), "user": torch.tensor([90, 50])})


@pytest.mark.core(1)
@pytest.mark.skipif(torch.cuda.is_available(), reason="of graphs on the CPU; tests/gpu has those on a GPU")
@pytest.mark.parametrize("expansion", list(Expansion))
@pytest.mark.parametrize("rule", RULES)
def test_a_batch_is_that_of_the_core(rule: str, expansion: Expansion) -> None:
    sampler = NeighborSampler(graph(), [4, -1, 2], rule=RULES[rule], expansion=expansion, edge_ids=True)
    expected = sampler.sample(seeds(RULES[rule]), DrawKey(8))
    with forcing(Engine.TRITON):
        found = sampler.sample(seeds(RULES[rule]), DrawKey(8))
    assert as_plain(found) == as_plain(expected)
