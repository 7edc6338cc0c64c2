"""Random walks: steps along in-edges with the probabilities of a Markov chain.

Node2vec: the second step has the weights of the paper, exactly counted on a small graph.

Neighbors by walks: visits with the enumerated means, the most visited of them, in a written graph.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import khop
from khop.graph.store import csc_graph_from_edges
from khop.sampling.random_walks import _chunks, _Walks
from support.group_graphs import COUNT, PAIRS, TO, chorded

GRAPH = chorded()


DEGREES = torch.bincount(torch.tensor(PAIRS)[:, 1], minlength=COUNT)


def transitions() -> Tensor:
    """The probability of a step from a row's node to a column's."""
    matrix = torch.zeros(COUNT, COUNT, dtype=torch.float64)
    for source, into in PAIRS:
        matrix[into, source] += 1 / int(DEGREES[into])
    return matrix


def near(found: Tensor, expected: Tensor, count: int) -> bool:
    """Shares of `count` draws differ by at most 4.5 deviations."""
    deviation = (expected * (1 - expected) / count).sqrt()
    return bool(((found - expected).abs() <= 4.5 * deviation + 1e-12).all())


def test_the_distribution_in_proportion_to_degrees_is_stationary() -> None:
    starts = torch.arange(COUNT).repeat_interleave(DEGREES * 400)
    walks = khop.random_walks(GRAPH, starts, [TO] * 6, seed=1)
    expected = DEGREES.double() / DEGREES.sum()
    for step in (1, 3, 6):
        found = torch.bincount(walks[:, step], minlength=COUNT).double() / starts.numel()
        assert near(found, expected, starts.numel())


def test_steps_have_the_probabilities_of_the_chain() -> None:
    starts, power = torch.full((20_000,), 4), transitions()
    walks = khop.random_walks(GRAPH, starts, [TO] * 3, seed=5)
    expected = power[4]
    for step in (1, 2, 3):
        found = torch.bincount(walks[:, step], minlength=COUNT).double() / starts.numel()
        assert near(found, expected, starts.numel())
        expected = expected @ power
    assert set(map(tuple, walks[:, 1:3].flip(1).tolist())) <= set(PAIRS)


def test_a_walk_at_a_node_without_in_edges_ends() -> None:
    walks = khop.random_walks(GRAPH, torch.tensor([23, 22, 0]), [TO] * 3)
    assert walks[0].tolist() == [23, -1, -1, -1]
    assert walks[1].tolist() == [22, 22, 22, 22]
    assert (walks[2] >= 0).all()


def test_walks_depend_on_their_number_only_and_on_seed_and_epoch() -> None:
    starts = torch.arange(COUNT)
    whole = khop.random_walks(GRAPH, starts, [TO] * 4, seed=3)
    assert torch.equal(khop.random_walks(GRAPH, starts[7:], [TO] * 4, seed=3, first=7), whole[7:])
    assert not torch.equal(khop.random_walks(GRAPH, starts, [TO] * 4, seed=4), whole)
    assert not torch.equal(khop.random_walks(GRAPH, starts, [TO] * 4, seed=3, epoch=1), whole)
    assert khop.random_walks(GRAPH, starts[:0], [TO] * 4).shape == (0, 5)


@pytest.mark.core(1)
@pytest.mark.parametrize("bias", [None, khop.Node2Vec(0.25, 4.0)])
def test_partitions_change_no_walk(tmp_path: Path, bias: khop.Node2Vec | None) -> None:
    ends = torch.tensor(PAIRS).T
    nodes = {"node": khop.NodeTable(COUNT)}
    whole = khop.write_graph(tmp_path / "whole", nodes, {TO: khop.EdgeTable(ends[0], ends[1])})
    khop.partition_graph(whole, tmp_path / "parts", 3, method="random")
    parts = khop.open_graph(tmp_path / "parts")
    originals = parts.original_ids("node")
    assert originals is not None
    starts = torch.arange(COUNT).repeat(3)
    there = khop.random_walks(parts, originals.argsort()[starts], [TO] * 4, bias=bias)
    here = khop.random_walks(khop.open_graph(whole), starts, [TO] * 4, bias=bias)
    assert torch.equal(torch.where(there < 0, there, originals[there.clamp(min=0)]), here)


def test_paths_that_do_not_fit_are_refused() -> None:
    pairs = torch.zeros(2, 1, dtype=torch.int64)
    graph = csc_graph_from_edges({"user": 1, "item": 1}, {("user", "buys", "item"): (pairs[0], pairs[1])})
    with pytest.raises(ValueError, match="must end at 'user'"):
        khop.random_walks(graph, pairs[0], ["user buys item", "user buys item"])
    with pytest.raises(ValueError, match="has no edge type"):
        khop.random_walks(graph, pairs[0], [])
    with pytest.raises(ValueError, match="there is no node 9"):
        khop.random_walks(graph, torch.tensor([9]), ["user buys item"])


IN = {node: [source for source, into in PAIRS if into == node] for node in range(24)}


@pytest.mark.core(1)
@pytest.mark.parametrize(("p", "q"), [(1.0, 1.0), (0.25, 4.0), (8.0, 0.5)])
def test_second_steps_have_the_enumerated_probabilities(p: float, q: float) -> None:
    count = 40_000
    walks = khop.random_walks(GRAPH, torch.full((count,), 6), [TO] * 2, bias=khop.Node2Vec(p, q), seed=2)
    expected: dict[tuple[int, int], float] = {}
    for middle in IN[6]:
        weights = [1 / p if end == 6 else 1.0 if end in IN[6] else 1 / q for end in IN[middle]]
        for end, weight in zip(IN[middle], weights, strict=True):
            share = weight / sum(weights) / len(IN[6])
            expected[middle, end] = expected.get((middle, end), 0) + share
    pairs, counts = walks[:, 1:].unique(dim=0, return_counts=True)
    found = dict(zip(map(tuple, pairs.tolist()), (counts / count).tolist(), strict=True))
    assert found.keys() <= expected.keys()
    for pair, share in expected.items():
        assert abs(found.get(pair, 0.0) - share) <= 4.5 * (share * (1 - share) / count) ** 0.5


def test_walks_with_bias_end_and_are_of_edges() -> None:
    walks = khop.random_walks(GRAPH, torch.tensor([23, 22, 1]), [TO] * 5, bias=khop.Node2Vec(2, 2))
    assert walks[0].tolist() == [23, -1, -1, -1, -1, -1]
    assert walks[1].tolist() == [22] * 6
    assert all((b, a) in PAIRS for a, b in zip(walks[2].tolist(), walks[2, 1:].tolist(), strict=False))


def test_weights_are_whole_numbers() -> None:
    assert khop.Node2Vec(0.5, 4.0).weights == (1 << 20, 1 << 19, 1 << 17)
    with pytest.raises(ValueError, match=r"p 0\.0: must be from 1/1024 to 1024"):
        khop.Node2Vec(p=0.0)


BUYS, BACK = ("user", "buys", "item"), ("item", "bought-by", "user")
USERS, ITEMS = 12, 8
GENERATOR = torch.Generator().manual_seed(3)
ENDS = torch.stack([torch.randint(n, (30,), generator=GENERATOR) for n in (USERS, ITEMS - 1)])
PATH = ["user buys item", "item bought-by user"]  # item 7 has no user


def shop() -> khop.Graph:
    edges = {BUYS: (ENDS[0], ENDS[1]), BACK: (ENDS[1], ENDS[0])}
    return khop.Graph(csc_graph_from_edges({"user": USERS, "item": ITEMS}, edges), None)  # type: ignore[arg-type]


def table(counts: khop.WalkCounts, seed: int = 0) -> dict[int, list[tuple[int, int]]]:
    """By item, its neighbors and their visits, in the order of the result."""
    found: dict[int, list[tuple[int, int]]] = {item: [] for item in range(ITEMS)}
    for chunk in khop.walk_neighbors(shop(), PATH, counts, seed=seed).chunks:
        columns = (chunk.sources, chunk.destinations, chunk.columns["visits"])
        for source, item, visits in zip(*(np.asarray(column).tolist() for column in columns), strict=True):
            found[item].append((source, visits))
    return found


def test_visits_have_the_means_of_the_chain_with_stops() -> None:
    walks, rounds, stop = 4000, 3, 0.4
    both = torch.zeros(ITEMS, USERS).double(), torch.zeros(USERS, ITEMS).double()
    for user, item in ENDS.T.tolist():
        both[0][item, user] += 1 / int((ENDS[1] == item).sum())
        both[1][user, item] += 1 / int((ENDS[0] == user).sum())
    step = both[0] @ both[1]
    expected = sum((1 - stop) ** r * torch.linalg.matrix_power(step, r + 1) for r in range(rounds))
    assert isinstance(expected, torch.Tensor)
    for item, neighbors in table(khop.WalkCounts(walks, rounds, stop, keep=ITEMS)).items():
        found = torch.zeros(ITEMS).double()
        for source, visits in neighbors:
            found[source] = visits / walks
        assert ((found - expected[item]).abs() <= 5 * (rounds * expected[item] / walks).sqrt()).all()
    assert table(khop.WalkCounts(walks, rounds, stop, keep=ITEMS))[7] == []


def test_without_stops_every_walk_visits_as_often_as_there_are_rounds() -> None:
    for item, neighbors in table(khop.WalkCounts(9, 4, 0.0, keep=ITEMS)).items():
        assert sum(visits for _, visits in neighbors) == (0 if item == 7 else 36)
    for item, neighbors in table(khop.WalkCounts(9, 4, 1.0, keep=ITEMS)).items():
        assert sum(visits for _, visits in neighbors) == (0 if item == 7 else 9)


def test_the_most_visited_are_kept_and_ties_go_to_the_lowest_id() -> None:
    every = table(khop.WalkCounts(20, 2, 0.5, keep=ITEMS))
    kept = table(khop.WalkCounts(20, 2, 0.5, keep=3))
    for item, neighbors in every.items():
        assert kept[item] == sorted(neighbors, key=lambda pair: (-pair[1], pair[0]))[:3]


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = khop.WalkCounts(20, 2, 0.5, keep=3)
    whole = table(counts)
    monkeypatch.setattr("khop.sampling.random_walks._WALKS_AT_ONCE", 60)
    assert len(list(_chunks(_Walks(shop(), [BUYS, BACK], counts, khop.DrawKey(0))))) == 3
    assert table(counts) == whole


@pytest.mark.core(1)
@pytest.mark.parametrize("bias", [khop.Node2Vec(0.25, 4.0), khop.Node2Vec(8.0, 0.5)])
def test_visits_of_biased_walks_have_the_means_of_node2vec(
    bias: khop.Node2Vec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rounds of one step: the second one, and the third after the two nodes before it."""
    walks, stop = 4000, 0.3
    monkeypatch.setattr("khop.sampling.random_walks._BIASED_AT_ONCE", 7 * walks)
    near = {node: [source for source, into in PAIRS if into == node] for node in range(COUNT)}
    table = khop.walk_neighbors(chorded(), [TO], khop.WalkCounts(walks, 3, stop, COUNT), bias=bias, seed=4)
    found = torch.zeros(COUNT, COUNT).double()
    for chunk in table.chunks:
        ends = torch.as_tensor(chunk.destinations), torch.as_tensor(chunk.sources)
        found[ends] = torch.as_tensor(chunk.columns["visits"]).double() / walks
    for start in range(COUNT):
        expected = torch.zeros(COUNT).double()
        pairs = {(start, end): 1 / len(near[start]) for end in near[start]}  # of the last two nodes
        for number in range(3):
            for (_, at), share in pairs.items():
                expected[at] += share * (1 - stop) ** number
            pairs = followed(pairs, near, bias)
        assert ((found[start] - expected).abs() <= 5 * (3 * expected / walks).sqrt()).all()


def followed(
    pairs: dict[tuple[int, int], float], near: dict[int, list[int]], bias: khop.Node2Vec
) -> dict[tuple[int, int], float]:
    """The shares of the last two nodes after a step."""
    after: dict[tuple[int, int], float] = {}
    for (before, at), share in pairs.items():
        weights = [
            1 / bias.p if end == before else 1.0 if end in near[before] else 1 / bias.q for end in near[at]
        ]
        for end, weight in zip(near[at], weights, strict=True):
            after[at, end] = after.get((at, end), 0.0) + share * weight / sum(weights)
    return after


def test_the_result_is_an_edge_type_to_sample_from(tmp_path: Path) -> None:
    visits = khop.walk_neighbors(chorded(), [TO], khop.WalkCounts(keep=5, rounds=4, stop=0.15))
    folder = khop.write_graph(
        tmp_path / "g", {"node": khop.NodeTable(COUNT)}, {("node", "near", "node"): visits}
    )
    graph = khop.open_graph(folder)
    for rule in (khop.TopK("visits"), khop.Weighted("visits")):
        batch = khop.Loader(khop.NeighborSampler(graph, [3], rule=rule), "all", 24).batch(0, 0)
        assert int(batch.blocks[0].adjacency.indptr.diff().max()) <= 3


def test_paths_that_do_not_lead_back_are_refused() -> None:
    with pytest.raises(ValueError, match="leads from 'item' to 'user'; it must lead back"):
        khop.walk_neighbors(shop(), ["user buys item"])
    with pytest.raises(ValueError, match="must be of one edge type; leave bias out"):
        khop.walk_neighbors(shop(), PATH, bias=khop.Node2Vec(2, 2))
    with pytest.raises(ValueError, match=r"stop 1\.5: must be a probability"):
        khop.WalkCounts(stop=1.5)
