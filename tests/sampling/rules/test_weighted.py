"""Draws by weight keep the promises of every rule, and state what a mean over them estimates."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from khop.draw import DrawKey, Frontier
from khop.graph.needs import RuleArrays
from khop.graph.rule import Hop, Rule
from khop.graph.store import csc_graph_from_edges
from khop.models.layer import aggregated
from khop.sampling.rules.weighted import Weighted
from khop.sampling.sampler import Expansion, NeighborSampler
from khop.sampling.seeds import Seeds
from khop.testing.rule import PROMISES

TO = ("node", "to", "node")


@pytest.mark.parametrize("rule", [Weighted("weight"), Weighted("weight", replacement=True)], ids=str)
@pytest.mark.parametrize("keeps", PROMISES, ids=lambda keeps: keeps.__name__)
def test_it_keeps_the_promises_of_a_rule(keeps: Callable[[Rule], None], rule: Rule) -> None:
    keeps(rule)


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


def test_all_neighbors_weigh_their_share_with_replacement_and_the_same_without() -> None:
    ends = torch.arange(4), torch.tensor([0, 0, 0, 1])
    columns = {TO: {"weight": torch.tensor([4.0, 0.0, 12.0, 3.0])}}
    graph = csc_graph_from_edges({"node": 4}, {TO: ends}, columns=columns)
    frontier = {"node": Frontier(torch.tensor([1, 0, 2]))}
    rule = Weighted("weight", replacement=True)
    shares = graph.sample_hop(frontier, Hop(1, {TO: -1}, rule), DrawKey(0))[TO]
    assert shares.nodes.tolist() == [3, 0, 2]
    assert shares.weights is not None
    assert shares.weights.tolist() == [1.0, 0.25, 0.75]
    plain = graph.sample_hop(frontier, Hop(1, {TO: -1}, Weighted("weight")), DrawKey(0))[TO]
    assert plain.nodes.tolist() == [3, 0, 2]
    assert plain.weights is None


def test_draws_without_replacement_are_biased_as_the_docstring_says() -> None:
    weights, trees = torch.tensor([1.0, 2.0, 6.0]), 20_000
    ends = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    graph = csc_graph_from_edges({"node": 3}, {TO: ends}, columns={TO: {"weight": weights}})
    frontier = Frontier(torch.zeros(trees, dtype=torch.int64), tree=torch.arange(trees))
    drawn = graph.sample_hop({"node": frontier}, Hop(1, {TO: 2}, Weighted("weight")), DrawKey(1))[TO].nodes
    # The chance to be the first pick plus the chance to be the second, divided by the two picks.
    first = weights / 9
    after = first[:, None] * weights[None, :] / (9 - weights[:, None])
    second = after.fill_diagonal_(0).sum(0)
    found = torch.bincount(drawn.long(), minlength=3) / drawn.numel()
    assert torch.allclose(found, (first + second) / 2, atol=0.01)
    assert float(found[2]) < 0.5 < float(first[2])


def test_a_mask_gives_the_mean_of_what_it_leaves() -> None:
    ends = torch.arange(5), torch.zeros(5, dtype=torch.int64)
    columns = {TO: {"mask": torch.tensor([True, False, True, True, False])}}
    graph = csc_graph_from_edges({"node": 5}, {TO: ends}, columns=columns)
    trees = 6_000
    frontier = Frontier(torch.zeros(trees, dtype=torch.int64), tree=torch.arange(trees))
    drawn = graph.sample_hop({"node": frontier}, Hop(1, {TO: 2}, Weighted("mask")), DrawKey(1))[TO].nodes
    shares = torch.bincount(drawn.long(), minlength=5) / drawn.numel()
    assert torch.allclose(shares, torch.tensor([1, 0, 1, 1, 0]) / 3, atol=0.02)


def test_hops_with_and_without_shares_join_in_one_subgraph() -> None:
    """A hop of all neighbors has weights, a draw of two has none: there every drawn edge counts alike."""
    edges = (torch.arange(60) * 7 % 20, torch.arange(60) % 20)
    weights = {TO: {"weight": 1.0 + torch.arange(60) % 5}}
    graph = csc_graph_from_edges({"node": 20}, {TO: edges}, columns=weights)
    rule = Weighted("weight", replacement=True)
    sampler = NeighborSampler(graph, [2, -1], rule=rule, expansion=Expansion.SUBGRAPH)
    seeds = Seeds({"node": torch.arange(3)}, {"node": torch.arange(3)})
    subgraph = sampler.sample(seeds, DrawKey(4)).subgraph
    assert subgraph is not None
    adjacency = subgraph.adjacencies[TO]
    assert adjacency.weight is not None
    rows = torch.repeat_interleave(torch.arange(adjacency.num_dst), adjacency.indptr.diff())
    sums = torch.zeros(adjacency.num_dst).index_add_(0, rows, adjacency.weight)
    torch.testing.assert_close(sums, (adjacency.indptr.diff() > 0).float())
    assert adjacency.weight[:6].tolist() == [0.5] * 6


@pytest.mark.parametrize("rule", [Weighted("weight"), Weighted("weight", replacement=True)], ids=str)
def test_a_row_whose_weights_are_all_zero_gives_zero(rule: Weighted) -> None:
    """Drawn, over all neighbors and in exact weights; the other row has its share."""
    ends = torch.arange(3), torch.tensor([0, 0, 1])
    columns = {TO: {"weight": torch.tensor([0.0, 0.0, 3.0])}}
    graph = csc_graph_from_edges({"node": 3}, {TO: ends}, columns=columns)
    seeds = Seeds({"node": torch.arange(2)}, {"node": torch.arange(2)})
    for fanout in (1, -1):
        sample = NeighborSampler(graph, [fanout], rule=rule).sample(seeds, DrawKey(1))
        x = 1 + sample.nodes["node"].double()[:, None]
        assert aggregated(x, sample.blocks[0].adjacency).tolist() == [[0.0], [3.0]]
    if rule.replacement:
        exact = rule.exact_weights(TO, RuleArrays(graph.edges, graph.columns))
        assert exact is not None
        assert exact.tolist() == [0.0, 0.0, 1.0]
