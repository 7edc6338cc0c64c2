"""Weights normalized by degrees: of the graph that a batch may see, never of the batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from khop.draw import DrawKey
from khop.graph.rule import Rule
from khop.graph.store import CscGraph, GraphStore, csc_graph_from_edges
from khop.sampling.links.exclusion import WithoutEdges
from khop.sampling.rules.sum import SymmetricSum
from khop.sampling.rules.temporal import Temporal
from khop.sampling.sampler import Expansion, NeighborSampler
from khop.sampling.seeds import Seeds

BUYS, BOUGHT = ("user", "buys", "item"), ("item", "bought_by", "user")
USERS, ITEMS = 12, 9


def shop(times: bool = False) -> CscGraph:
    """Users and items, every edge in both directions; item 8 has none."""
    random = torch.Generator().manual_seed(5)
    user, item = (
        torch.randint(USERS, (50,), generator=random),
        torch.randint(ITEMS - 1, (50,), generator=random),
    )
    columns = {t: {"time": torch.arange(50)} for t in (BUYS, BOUGHT)} if times else {}
    edges = {BUYS: (user, item), BOUGHT: (item, user)}
    return csc_graph_from_edges(
        {"user": USERS, "item": ITEMS}, edges, columns=columns, sort_by="time" if times else None
    )


def matrix(graph: GraphStore, edges: int = 50) -> Tensor:
    """The normalized matrix of (items, users) from the first edges in time."""
    random = torch.Generator().manual_seed(5)
    user, item = (
        torch.randint(USERS, (50,), generator=random),
        torch.randint(ITEMS - 1, (50,), generator=random),
    )
    found = torch.zeros(ITEMS, USERS, dtype=torch.float64)
    found.index_put_((item[:edges], user[:edges]), torch.ones(edges, dtype=torch.float64), accumulate=True)
    of_items, of_users = found.sum(1, keepdim=True).clamp(min=1), found.sum(0, keepdim=True).clamp(min=1)
    return found / (of_items * of_users).sqrt()


def of_items(
    graph: GraphStore,
    rule: Rule,
    fanout: int,
    key: int = 1,
    expansion: Expansion = Expansion.LAYERED,
    until: int | None = None,
    view: GraphStore | None = None,
) -> Tensor:
    """The coefficients of users in the sums of all items, (items, users), from the block at the seeds."""
    items = torch.arange(ITEMS)
    times = None if until is None else {"item": torch.full((ITEMS,), until)}
    sampler = NeighborSampler(graph, [fanout, 2], rule=rule, expansion=expansion)
    sample = sampler.sample(Seeds({"item": items}, {"item": items}, times), DrawKey(key), view=view)
    adjacency = sample.blocks[-1].adjacencies[BUYS]
    assert adjacency.weight is not None
    users = sample.nodes["user"][adjacency.edge_index[0]]
    rows = sample.nodes["item"][adjacency.edge_index[1]]
    found = torch.zeros(ITEMS, USERS, dtype=torch.float64)
    return found.index_put((rows, users), adjacency.weight.double(), accumulate=True)


@pytest.mark.parametrize("expansion", list(Expansion))
def test_all_neighbors_weigh_the_normalized_matrix(expansion: Expansion) -> None:
    graph = shop()
    found = of_items(graph, SymmetricSum(), -1, expansion=expansion)
    torch.testing.assert_close(found, matrix(graph), rtol=1e-6, atol=0)


@pytest.mark.parametrize("keys", [300, pytest.param(2000, marks=pytest.mark.long)])
def test_the_mean_over_many_keys_is_the_sum_over_all_neighbors(keys: int) -> None:
    """Within five standard errors of a mean."""
    graph = shop()
    found = torch.stack([of_items(graph, SymmetricSum(), 2, key) for key in range(keys)])
    error = 5 * found.std(0) / keys**0.5
    assert bool(((found.mean(0) - matrix(graph)).abs() <= error + 1e-6).all())


@pytest.mark.parametrize("edges", [1, 20, 50])
def test_degrees_within_time_are_those_of_the_allowed_edges(edges: int) -> None:
    graph = shop(times=True)
    found = of_items(graph, Temporal("time", inner=SymmetricSum()), -1, until=edges - 1)
    torch.testing.assert_close(found, matrix(graph, edges), rtol=1e-6, atol=0)


def test_degrees_leave_held_out_links_out_and_count_the_links_of_a_step() -> None:
    graph = shop(times=True)
    kept = {t: graph.columns[t]["time"] < 30 for t in (BUYS, BOUGHT)}
    training = graph.keeping({t: [is_kept.nonzero().squeeze(1)] for t, is_kept in kept.items()})
    found = of_items(training, SymmetricSum(), -1)
    torch.testing.assert_close(found, matrix(graph, 30), rtol=1e-6, atol=0)
    pair = torch.tensor([[0], [3]])
    view = WithoutEdges(training, {BUYS: pair})
    without = of_items(training, SymmetricSum(), -1, view=view)
    wanted = found.clone()
    wanted[3, 0] = 0
    assert torch.equal(without, wanted)
