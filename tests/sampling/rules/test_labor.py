"""Draws of `Labor` keep the promises of every rule, are unbiased, and share sources among rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import permutations

import pytest
import torch

import khop
from khop.draw import DrawKey, Frontier, Neighbors, Purpose
from khop.graph.needs import RuleArrays, SourceIds
from khop.graph.rule import Hop, Rule
from khop.graph.store import CscGraph, csc_graph_from_edges
from khop.sampling.rules.labor import Labor
from khop.sampling.rules.sum import Sum
from khop.sampling.rules.temporal import Temporal
from khop.sampling.sampler import NeighborSampler
from khop.testing import reference
from khop.testing.graphs import seeds_of
from khop.testing.rule import PROMISES
from support.examples import few

TO, LIKES = ("node", "to", "node"), ("node", "likes", "node")
RULES = [
    Labor(),
    Labor(layer_dependent=True),
    Labor(kappa=3),
    Sum(Labor()),
    Temporal("time", inner=Labor()),
    Temporal("time", window=(6, 0), inner=Sum(Labor(kappa=2))),
]


@pytest.mark.core(9)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("keeps", PROMISES, ids=lambda keeps: keeps.__name__)
def test_it_keeps_the_promises_of_a_rule(keeps: Callable[[Rule], None], rule: Rule) -> None:
    keeps(rule)


def graph_of(rows: list[list[int]], num_nodes: int, **columns: torch.Tensor) -> CscGraph:
    """Row i holds in-edges of node i."""
    sources = torch.tensor([source for row in rows for source in row])
    ends = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor([len(row) for row in rows]))
    sort_by = "time" if "time" in columns else None
    return csc_graph_from_edges(
        {"node": num_nodes}, {TO: (sources, ends)}, columns={TO: columns}, sort_by=sort_by
    )


def drawn(graph: CscGraph, rule: Rule, fanout: int, key: DrawKey, hop: int = 1) -> Neighbors:
    frontier = {"node": Frontier(torch.arange(graph.num_nodes("node")))}
    return graph.sample_hop(frontier, Hop(hop, {TO: fanout}, rule, edge_ids=True), key)[TO]


def test_every_set_of_sources_is_as_likely_as_its_orders() -> None:
    """All orders of the numbers are equally likely, so k of d sources are drawn with probability k / d."""
    degree, fanout, trials = 5, 2, few(1000)
    graph = graph_of([[1, 2, 3, 4, 5]], 6)
    listed = Counter(frozenset(order[:fanout]) for order in permutations(range(1, degree + 1)))
    share = 1 / len(listed)
    assert set(listed.values()) == {12}  # of 120 orders: the ten sets are equally likely
    seen = Counter(
        frozenset(drawn(graph, Labor(), fanout, DrawKey(key)).nodes.tolist()) for key in range(trials)
    )
    assert seen.keys() == listed.keys()
    # Five standard deviations of a binomial.
    assert all(
        abs(count - trials * share) < 5 * (trials * share * (1 - share)) ** 0.5 for count in seen.values()
    )


@pytest.mark.core(1)
@pytest.mark.parametrize("row", [[1, 2, 3, 4], [1, 1, 2, 3], [1, 1, 1, 1, 2], [1, 1, 2, 2, 2, 3]], ids=str)
def test_a_mean_over_draws_is_the_mean_over_all_edges_also_of_parallel_ones(row: list[int]) -> None:
    trials, fanout = few(1000), 2
    graph, values = graph_of([row], 6), torch.tensor([0.0, 1.0, 10.0, 100.0, 1000.0, 0.0])
    edges = torch.zeros(len(row))
    total = 0.0
    for key in range(trials):
        found = drawn(graph, Labor(), fanout, DrawKey(key))
        assert found.edges is not None
        assert found.edges.unique().numel() == fanout
        edges[found.edges] += 1
        total += float(values[found.nodes.long()].mean())
    share = fanout / len(row)
    spread = 5 * (trials * share * (1 - share)) ** 0.5
    assert bool(((edges - trials * share).abs() < spread).all()), edges.tolist()
    of_all = values[torch.tensor(row)]
    assert total / trials == pytest.approx(
        float(of_all.mean()), abs=5 * float(of_all.std()) / (trials / 2) ** 0.5
    )


def test_rows_and_edge_types_prefer_the_same_sources() -> None:
    """Two rows with the same edges draw the same; so do two edge types from the same source type."""
    ends = torch.repeat_interleave(torch.arange(2), 40)
    edges = {t: (torch.arange(80) % 40 + 2, ends) for t in (TO, LIKES)}
    graph = csc_graph_from_edges({"node": 42}, edges)
    frontier = {"node": Frontier(torch.arange(2))}
    hop = Hop(1, {TO: 10, LIKES: 10}, Labor())
    for key in range(20):
        found = graph.sample_hop(frontier, hop, DrawKey(key))
        rows = {tuple(found[t].nodes.view(2, 10)[row].tolist()) for t in (TO, LIKES) for row in range(2)}
        assert len(rows) == 1


def test_hops_differ_unless_layers_depend_on_each_other() -> None:
    graph, key = graph_of([list(range(1, 40))], 40), DrawKey(4)
    first, second = (drawn(graph, Labor(), 5, key, hop).nodes.tolist() for hop in (1, 2))
    assert first != second
    dependent = [drawn(graph, Labor(layer_dependent=True), 5, key, hop).nodes.tolist() for hop in (1, 2)]
    assert dependent[0] == dependent[1]


def test_the_draws_are_those_of_the_specification() -> None:
    row, key = [3, 9, 3, 7, 1, 9, 3], DrawKey.of(7, Purpose.HOP, 1, 5)
    graph = graph_of([row], 10)
    for hop in (1, 2):
        word = reference.stream(hop, ("node",))
        picks = reference.smallest_picks(reference.labor_keys(key.value, word, row), row, 3)
        assert drawn(graph, Labor(), 3, key, hop).edges.tolist() == picks  # type: ignore[union-attr]


def test_within_a_time_limit_it_draws_the_smallest_of_the_allowed_edges() -> None:
    row = [5, 3, 8, 1, 9, 2]
    graph, key = graph_of([row], 10, time=torch.arange(6)), DrawKey(8)
    keys = reference.labor_keys(key.value, reference.stream(1, ("node",)), row)
    for limit in range(-1, 7):
        frontier = {"node": Frontier(torch.tensor([0]), torch.tensor([limit]))}
        hop = Hop(1, {TO: 2}, Temporal("time", inner=Labor()), edge_ids=True)
        found = graph.sample_hop(frontier, hop, key)[TO]
        assert found.edges is not None
        allowed = min(max(limit + 1, 0), 6)
        assert found.edges.tolist() == reference.smallest_picks(keys[:allowed], row[:allowed], 2)


def dense(num_nodes: int = 400, degree: int = 30) -> CscGraph:
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randperm(num_nodes, generator=generator)[:degree].tolist() for _ in range(num_nodes)]
    return graph_of(rows, num_nodes)


def batch_nodes(graph: CscGraph, rule: Rule, key: DrawKey) -> torch.Tensor:
    sampler = NeighborSampler(graph, [5, 5], rule=rule)
    return sampler.sample(seeds_of({"node": list(range(20))}), key).nodes["node"]


def test_a_batch_has_fewer_nodes() -> None:
    graph = dense(4000)
    plain, shared, dependent = (
        sum(batch_nodes(graph, rule, DrawKey(key)).numel() for key in range(10))
        for rule in (khop.Uniform(), Labor(), Labor(layer_dependent=True))
    )
    assert dependent < shared < plain


@pytest.mark.long
def test_successive_batches_share_nodes_with_kappa() -> None:
    graph = dense(4000)

    def overlap(kappa: int) -> float:
        shared = every = 0
        for step in range(6):
            one, other = (
                set(batch_nodes(graph, Labor(kappa=kappa), DrawKey.of(1, Purpose.HOP, 0, at)).tolist()[20:])
                for at in (step, step + 1)
            )
            shared, every = shared + len(one & other), every + len(other)
        return shared / every

    assert overlap(1) < 0.35
    assert overlap(8) > 0.6
    assert overlap(64) > overlap(8)


def test_each_batch_is_unbiased_with_kappa() -> None:
    graph, trials, edges = graph_of([[1, 2, 3, 4, 5]], 6), few(600), torch.zeros(5)
    for seed in range(trials):
        found = drawn(graph, Labor(kappa=5), 2, DrawKey.of(seed, Purpose.HOP, 0, 7))
        assert found.edges is not None
        edges[found.edges] += 1
    assert bool(((edges / trials - 0.4).abs() < 5 * (0.24 / trials) ** 0.5).all()), edges.tolist()


def test_a_sum_weighs_by_the_degree() -> None:
    found = drawn(graph_of([[1, 2, 3, 4, 5]], 6), Sum(Labor()), 2, DrawKey(1))
    assert found.weights is not None
    assert found.weights.tolist() == [2.5, 2.5]


def test_separate_trees_are_refused_but_for_times() -> None:
    graph = graph_of([[1, 2]], 3, time=torch.arange(2))
    with pytest.raises(ValueError, match=r"Labor.*does not draw for disjoint trees"):
        NeighborSampler(graph, [2], rule=Labor(), trees="disjoint")
    NeighborSampler(graph, [2], rule=Temporal("time", inner=Labor()))


@pytest.mark.parametrize("bad", [0, -1, 1.5, 1 << 31, "2", True])
def test_kappa_is_a_number_of_steps(bad: object) -> None:
    with pytest.raises(ValueError, match=r"kappa .*must be a whole number"):
        Labor(kappa=bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="layer_dependent"):
        Labor(layer_dependent="yes")  # type: ignore[arg-type]


def test_it_says_what_it_estimates_and_how_visits_are_found() -> None:
    graph = graph_of([[1, 2]], 3)
    assert Labor().exact_weights(TO, RuleArrays(graph.edges, graph.columns)) is None
    assert not Labor().is_uniform  # the chance of a visit does not follow from degrees
    assert not Labor().has_weights(3)
    assert NeighborSampler(graph, [2], rule=Labor()).visits({"node": torch.tensor([0])}, 1) is None


def test_a_graph_without_parallel_edges_keeps_no_array_of_its_own() -> None:
    graph = dense(50, 5)
    arrays = RuleArrays(graph.edges, graph.columns)
    for need in Labor().needs(TO):
        _ = arrays[need]
    assert arrays[SourceIds(TO)] is graph.edges[TO].indices
    assert arrays[Labor().needs(TO)[1]] is None
