"""Draws by weight keep the promises of every rule, and state what a mean over them estimates."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from khop.draw import DrawKey, Frontier
from khop.graph.csc_graph import csc_graph_from_edges
from khop.graph.rule_arrays import RuleArrays
from khop.rules.rule import Hop, Rule
from khop.rules.weighted import Weighted
from khop.testing.rule import PROMISES

TO = ("node", "to", "node")


@pytest.mark.parametrize("rule", [Weighted("weight"), Weighted("weight", replacement=True)], ids=str)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps_the_promises_of_a_rule(promise: Callable[[Rule], None], rule: Rule) -> None:
    promise(rule)


def test_the_mean_over_draws_is_the_mean_by_its_exact_weights() -> None:
    weights, trees = torch.tensor([4.0, 0.0, 1.0, 3.0]), 40_000
    ends = torch.arange(4), torch.zeros(4, dtype=torch.int64)
    graph = csc_graph_from_edges({"node": 4}, {TO: ends}, columns={TO: {"weight": weights}})
    rule = Weighted("weight", replacement=True)
    exact = rule.exact_weights(TO, RuleArrays(graph.edges, graph.columns))
    assert exact is not None
    assert exact.tolist() == [0.5, 0.0, 0.125, 0.375]
    frontier = Frontier(torch.zeros(trees, dtype=torch.int64), tree=torch.arange(trees))
    drawn = graph.sample_hop({"node": frontier}, Hop(1, {TO: 2}, rule), DrawKey(1))[TO].nodes
    shares = torch.bincount(drawn.long(), minlength=4) / drawn.numel()
    assert torch.allclose(shares.double(), exact, atol=0.01)


def test_draws_without_replacement_estimate_no_weighted_mean() -> None:
    graph = csc_graph_from_edges({"node": 1}, {TO: (torch.tensor([0]), torch.tensor([0]))})
    with pytest.raises(ValueError, match=r"without replacement estimates no weighted mean.*replacement=True"):
        Weighted("weight").exact_weights(TO, RuleArrays(graph.edges, graph.columns))
