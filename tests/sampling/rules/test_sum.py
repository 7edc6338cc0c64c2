"""Draws of `Sum` keep the promises of every rule, and estimate sums over all allowed neighbors."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
import torch
from torch import Tensor

from khop.draw import DrawKey, Frontier, Neighbors
from khop.graph.needs import RuleArrays
from khop.graph.rule import Hop, Rule
from khop.graph.store import CscGraph, csc_graph_from_edges
from khop.sampling.links.exclusion import WithoutEdges
from khop.sampling.rules.sum import Sum
from khop.sampling.rules.temporal import Temporal, TemporalStrategy
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted
from khop.testing.rule import PROMISES

TO = ("node", "to", "node")
BY_WEIGHT = Sum(Weighted("weight", replacement=True))
RULES = [Sum(), Sum(Uniform(replacement=True)), BY_WEIGHT, Temporal("time", inner=BY_WEIGHT)]


@pytest.mark.core(9)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("keeps", PROMISES, ids=lambda keeps: keeps.__name__)
def test_it_keeps_the_promises_of_a_rule(keeps: Callable[[Rule], None], rule: Rule) -> None:
    keeps(rule)


def one_row() -> CscGraph:
    """Node 0 has five in-edges, of times 0 to 4."""
    columns = {TO: {"weight": torch.tensor([4.0, 1.0, 1.0, 2.0, 8.0]), "time": torch.arange(5)}}
    ends = torch.arange(5), torch.zeros(5, dtype=torch.int64)
    return csc_graph_from_edges({"node": 5}, {TO: ends}, columns=columns, sort_by="time")


def drawn(rule: Rule, fanout: int, trees: int = 1, until: int | None = None) -> Neighbors:
    limits = None if until is None else torch.full((trees,), until)
    frontier = Frontier(torch.zeros(trees, dtype=torch.int64), limits, torch.arange(trees))
    return one_row().sample_hop({"node": frontier}, Hop(1, {TO: fanout}, rule), DrawKey(1))[TO]


def coefficients(found: Neighbors, trees: int = 1) -> Tensor:
    """The mean over all trees of each source's weight."""
    assert found.weights is not None
    return torch.zeros(5).index_add(0, found.nodes.long(), found.weights) / trees


def test_the_mean_over_all_draws_is_the_sum() -> None:
    """Uniform draws of two of five are equally likely, so that the pairs can be listed."""
    pairs = list(combinations(range(5), 2))
    listed = sum(5 / 2 * torch.zeros(5).index_add(0, torch.tensor(pair), torch.ones(2)) for pair in pairs)
    assert torch.allclose(torch.as_tensor(listed) / len(pairs), torch.ones(5))
    found = drawn(Sum(), 2, 300)
    assert found.weights is not None
    assert set(found.weights.tolist()) == {2.5}
    assert {tuple(sorted(pair)) for pair in found.nodes.view(-1, 2).tolist()} == set(pairs)


@pytest.mark.core(2)
@pytest.mark.parametrize(
    ("rule", "until"),
    [
        (Sum(), None),
        (Sum(Uniform(replacement=True)), None),
        (Sum(Weighted("weight", replacement=True)), None),
        (Temporal("time", inner=Sum()), 3),
        (Temporal("time", inner=Sum(Weighted("weight", replacement=True))), 2),
        (Temporal("time", window=(1, 0), inner=Sum()), 3),
    ],
    ids=str,
)
def test_the_mean_over_many_draws_is_the_draw_of_all(rule: Rule, until: int | None) -> None:
    """Within five standard errors: a coefficient is at most 5 x its count, a binomial of two draws a tree."""
    trees = 20_000
    few, every = coefficients(drawn(rule, 2, trees, until), trees), coefficients(drawn(rule, -1, 1, until))
    assert torch.allclose(few, every, atol=5 * 5 / 2 * (2 * 0.25 / trees) ** 0.5)
    allowed = 5 if until is None else min(until + 1, 2 if "window=(" in str(rule) else 5)
    assert every.sum() == pytest.approx(allowed)


def test_a_view_without_some_edges_sums_the_others() -> None:
    """Degrees are those of the graph without held-out links; the links of a step carry no message."""
    graph = one_row()
    kept = graph.keeping({TO: [torch.tensor([0, 1, 3])]})
    frontier = {"node": Frontier(torch.zeros(1, dtype=torch.int64))}
    few = kept.sample_hop(frontier, Hop(1, {TO: 2}, Sum()), DrawKey(1))[TO]
    assert few.weights is not None
    assert few.weights.tolist() == [1.5, 1.5]
    view = WithoutEdges(graph, {TO: torch.tensor([[2], [0]])})
    rest = view.sample_hop(frontier, Hop(1, {TO: -1}, Sum()), DrawKey(1))[TO]
    assert rest.nodes.tolist() == [0, 1, 3, 4]
    assert rest.weights is not None
    assert rest.weights.tolist() == [1.0] * 4


def test_its_exact_weights_are_ones_or_shares_times_the_degree() -> None:
    graph = one_row()
    arrays = RuleArrays(graph.edges, graph.columns)
    assert Sum().exact_weights(TO, arrays).tolist() == [1.0] * 5
    weighted = Sum(Weighted("weight", replacement=True)).exact_weights(TO, arrays)
    assert weighted.tolist() == [1.25, 0.3125, 0.3125, 0.625, 2.5]
    with pytest.raises(ValueError, match="estimates no weighted mean"):
        Sum(Weighted("weight")).exact_weights(TO, arrays)


def test_the_latest_edges_estimate_no_sum() -> None:
    with pytest.raises(ValueError, match="strategy=LATEST with Sum"):
        Temporal("time", TemporalStrategy.LATEST, inner=Sum())
