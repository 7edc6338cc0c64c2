"""Neighbors by walks: visits with the enumerated means, the most visited of them, in a written graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import khop
from khop.graph.csc_graph import csc_graph_from_edges
from khop.sampling.walk_neighbors import _chunks, _Walks
from support.group_graphs import COUNT, PAIRS, TO, chorded

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
    monkeypatch.setattr("khop.sampling.walk_neighbors._WALKS_AT_ONCE", 60)
    assert len(list(_chunks(_Walks(shop(), [BUYS, BACK], counts, khop.DrawKey(0))))) == 3
    assert table(counts) == whole


@pytest.mark.parametrize("bias", [khop.Node2Vec(0.25, 4.0), khop.Node2Vec(8.0, 0.5)])
def test_visits_of_biased_walks_have_the_means_of_node2vec(
    bias: khop.Node2Vec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rounds of one step: the second one, and the third after the two nodes before it."""
    walks, stop = 4000, 0.3
    monkeypatch.setattr("khop.sampling.walk_neighbors._BIASED_AT_ONCE", 7 * walks)
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
