"""Draws of `RelationMean` estimate the mean over the neighbors of each relation, however rare it is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
import torch
from torch import Tensor

import khop
from khop.draw import DrawKey, Frontier, Neighbors
from khop.graph.needs import RuleArrays
from khop.graph.rule import Hop, Rule
from khop.graph.store import CscGraph, csc_graph_from_edges
from khop.sampling.links.exclusion import WithoutEdges
from khop.sampling.rules.labor import Labor
from khop.sampling.rules.sum import RelationMean
from khop.sampling.rules.temporal import Temporal
from khop.sampling.rules.top_k import TopK
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted
from khop.testing.rule import PROMISES, all_neighbors_have_their_exact_weights, draws_average_to_exact_weights

TO, ON = ("node", "to", "node"), ("node", "on", "node")
RARE, COUNT = 1, 10  # edges of relation 0, and of relations 0 and 1
RULES = [
    RelationMean("time", Labor(kappa=2)),
    Temporal("time", window=(5, 0), inner=RelationMean("time", Uniform(replacement=True))),
]


@pytest.mark.core(9)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("keeps", PROMISES, ids=lambda keeps: keeps.__name__)
def test_it_keeps_the_promises_of_a_rule(keeps: Callable[[Rule], None], rule: Rule) -> None:
    keeps(rule)


@pytest.mark.parametrize("inner", [Uniform(), Weighted("weight", replacement=True)], ids=str)
def test_other_inner_rules_keep_the_promises_about_weights(inner: Rule) -> None:
    all_neighbors_have_their_exact_weights(RelationMean("time", inner))
    draws_average_to_exact_weights(RelationMean("time", inner))


def one_row() -> CscGraph:
    """Node 0 has an edge of relation 0 and nine of relation 1, of times 0 to 9; `ON` has no relations."""
    ends = torch.arange(COUNT), torch.zeros(COUNT, dtype=torch.int64)
    columns = {TO: {"r": (torch.arange(COUNT) >= RARE).to(torch.uint8), "time": torch.arange(COUNT)}}
    return csc_graph_from_edges({"node": COUNT}, {TO: ends, ON: ends}, columns=columns, sort_by="time")


def drawn(
    graph: CscGraph | WithoutEdges, rule: Rule, fanout: int, trees: int = 1, until: int | None = None
) -> Neighbors:
    limits = None if until is None else torch.full((trees,), until)
    frontier = Frontier(torch.zeros(trees, dtype=torch.int64), limits, torch.arange(trees))
    return graph.sample_hop({"node": frontier}, Hop(1, {TO: fanout}, rule), DrawKey(1))[TO]


def coefficients(found: Neighbors) -> Tensor:
    """The weight of each source, in a row."""
    assert found.weights is not None
    return torch.zeros(COUNT).index_add(0, found.nodes.long(), found.weights)


EXACT = torch.tensor([1.0] + [1 / 9] * 9)


def test_the_mean_over_all_draws_is_the_mean_by_relation() -> None:
    """Uniform draws of two of ten are equally likely, so that the pairs can be listed."""
    pairs = list(combinations(range(COUNT), 2))
    listed = torch.stack(
        [10 / 2 * torch.zeros(COUNT).index_copy(0, torch.tensor(pair), EXACT[list(pair)]) for pair in pairs]
    )
    torch.testing.assert_close(listed.mean(0), EXACT)
    found = drawn(one_row(), RelationMean("r"), 2, 1000)
    assert found.weights is not None
    assert {tuple(sorted(pair)) for pair in found.nodes.view(-1, 2).tolist()} == set(pairs)
    torch.testing.assert_close(found.weights, 5 * EXACT[found.nodes.long()])


def test_within_time_it_counts_the_allowed_edges() -> None:
    """Of times up to 4 there are four edges of relation 1; the window of two leaves three, and none of 0."""
    rule = RelationMean("r")
    every = coefficients(drawn(one_row(), Temporal("time", inner=rule), -1, until=4))
    torch.testing.assert_close(every, torch.tensor([1.0] + [0.25] * 4 + [0.0] * 5))
    few = drawn(one_row(), Temporal("time", window=(2, 0), inner=rule), 2, until=4)
    assert few.weights is not None
    assert few.weights.tolist() == [0.5, 0.5]  # 3 / 2 / 3


def test_held_out_edges_do_not_count_and_links_of_a_step_do() -> None:
    graph = one_row()
    kept = graph.keeping({TO: [torch.tensor([0, 3, 5])]})
    expected = torch.tensor([1.0, 0, 0, 0.5, 0, 0.5, 0, 0, 0, 0])
    torch.testing.assert_close(coefficients(drawn(kept, RelationMean("r"), -1)), expected)
    view = WithoutEdges(graph, {TO: torch.tensor([[3], [0]])})
    expected = EXACT.clone()
    expected[3] = 0
    torch.testing.assert_close(coefficients(drawn(view, RelationMean("r"), -1)), expected)


def test_its_exact_weights_and_edge_types_without_relations() -> None:
    graph = one_row()
    arrays = RuleArrays(graph.edges, graph.columns)
    exact = RelationMean("r").exact_weights(TO, arrays)
    assert exact.tolist() == [1.0] + [1 / 9] * 9
    assert RelationMean("r", Labor()).exact_weights(ON, arrays).tolist() == [0.1] * 10
    frontier = {"node": Frontier(torch.tensor([0]))}
    found = graph.sample_hop(frontier, Hop(1, {ON: 4}, RelationMean("r")), DrawKey(1))[ON]
    assert found.weights is not None
    assert found.weights.tolist() == [0.25] * 4
    with pytest.raises(ValueError, match=r"^RelationMean\(.*: Sum\(.*no weighted mean"):
        RelationMean("time", Weighted("time")).exact_weights(TO, arrays)
    assert RelationMean("r", TopK("time")).exact_fanout(graph.schema, TO, 3) == 3


def test_counts_are_kept_with_the_graph_and_made_again_if_damaged(tmp_path: Path) -> None:
    tables = {
        TO: khop.EdgeTable(torch.tensor([0, 1, 2]), torch.zeros(3).long(), {"r": torch.tensor([4, 4, 7])})
    }
    graph = khop.open_graph(khop.write_graph(tmp_path / "graph", {"node": khop.NodeTable(3)}, tables))
    sampler = khop.NeighborSampler(graph, [-1], rule=RelationMean("r"))
    weights = khop.Loader(sampler, torch.tensor([0]), 1).batch(0, 0).blocks[0].adjacency.weight
    assert weights is not None
    assert weights.tolist() == [0.5, 0.5, 1.0]
    (file,) = (tmp_path / "graph").glob("derived/*/edges/*/relation_counts.r.npy")
    file.write_bytes(file.read_bytes()[:-3])
    again = khop.NeighborSampler(khop.open_graph(tmp_path / "graph"), [-1], rule=RelationMean("r"))
    with pytest.warns(UserWarning, match=r"relation_counts\.r\.npy: was damaged"):
        found = khop.Loader(again, torch.tensor([0]), 1).batch(0, 0).blocks[0].adjacency.weight
    assert found is not None
    assert torch.equal(found, weights)


def test_unfit_columns_and_rules_are_refused() -> None:
    columns = {TO: {"w": torch.ones(1), "pair": torch.ones(1, 2).long()}}
    graph = csc_graph_from_edges({"node": 1}, {TO: (torch.zeros(1).long(),) * 2}, columns=columns)
    for column, message in (
        ("w", r"column 'w' of .* is float32 of shape \(\): one integer per row is needed"),
        ("pair", r"column 'pair' of .* is int64 of shape \(2,\): one integer per row is needed"),
        ("r", r"RelationMean\(column='r'\): no column 'r'; there are"),
    ):
        with pytest.raises(ValueError, match=message):
            khop.NeighborSampler(graph, [1], rule=RelationMean(column))
    with pytest.raises(ValueError, match=r"give Temporal\(column, inner=RelationMean\(\.\.\.\)\)"):
        RelationMean("r", Temporal("time"))
