"""Negatives of a graph: even, by degree, exact, in time; and what draws need is kept beside the folder."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop import (
    DegreeNegatives,
    DrawKey,
    EdgeTable,
    NodeTable,
    UniformNegatives,
    WeightedNegatives,
    write_graph,
)
from khop.draw import DrawnNegatives, Positives
from khop.graph.negatives import degree_weights
from khop.graph.store import CscGraph, csc_graph_from_edges, open_csc_graph

KEY = DrawKey(5)
BUYS, KNOWS = ("user", "buys", "item"), ("user", "knows", "user")
NODE = st.integers(0, 6)


def graph_of(
    buys: list[tuple[int, int]], knows: list[tuple[int, int]], times: list[int] | None = None
) -> CscGraph:
    columns = {} if times is None else {"item": {"time": torch.tensor(times)}}
    edges = {BUYS: _ends(buys), KNOWS: _ends(knows)}
    return csc_graph_from_edges({"user": 7, "item": 7}, edges, columns=columns)


def _ends(pairs: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    sources, destinations = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T
    return sources, destinations


def positives(sources: list[int], until: list[int] | None = None) -> Positives:
    times = None if until is None else torch.tensor(until)
    return Positives(
        torch.tensor(sources), torch.arange(len(sources)), times, None if until is None else "time"
    )


@given(
    pairs=st.lists(st.tuples(NODE, NODE), max_size=30),
    power=st.sampled_from([None, 0.25, 0.75, 1.0]),
    times=st.none() | st.lists(st.integers(0, 3), min_size=7, max_size=7),
    among_users=st.booleans(),
)
def test_exact_negatives_are_no_edges_and_all_that_are_none_are_drawn(
    pairs: list[tuple[int, int]], power: float | None, times: list[int] | None, among_users: bool
) -> None:
    edge_type = KNOWS if among_users else BUYS
    graph = graph_of([] if among_users else pairs, pairs if among_users else [], times)
    degrees = Counter(destination for _, destination in pairs)
    for source in range(7):
        for limit in [0, 2] if times else [9]:
            allowed = {
                node
                for node in range(7)
                if (source, node) not in pairs
                and (power is None or degrees[node])
                and not (among_users and node == source)
                and (times is None or among_users or times[node] <= limit)
            }
            rule = DegreeNegatives(60, exact=True, power=power) if power else UniformNegatives(60, exact=True)
            wanted = positives([source] * 4, [limit] * 4 if times else None)
            if not allowed:
                with pytest.raises(ValueError, match=f"'user' node {source} is connected to every"):
                    graph.sample_negatives(edge_type, rule, wanted, KEY)
                continue
            drawn = graph.sample_negatives(edge_type, rule, wanted, KEY)
            assert set(drawn.flatten().tolist()) == allowed


@pytest.mark.parametrize("rule", [UniformNegatives(3), DegreeNegatives(3), UniformNegatives(3, exact=True)])
def test_a_draw_depends_on_the_links_position_alone(rule: DrawnNegatives) -> None:
    graph = graph_of([(0, 1), (1, 2), (3, 2), (4, 5)], [])
    whole = graph.sample_negatives(BUYS, rule, positives([0, 1, 3, 4]), KEY)
    tail = graph.sample_negatives(BUYS, rule, Positives(torch.tensor([3, 4]), torch.tensor([2, 3])), KEY)
    assert torch.equal(whole[2:], tail)
    assert not torch.equal(whole, graph.sample_negatives(BUYS, rule, positives([0, 1, 3, 4]), KEY.plus(1)))


def test_edge_types_draw_independently() -> None:
    graph = graph_of([(0, 1)], [(0, 1)])
    drawn = [graph.sample_negatives(t, UniformNegatives(30), positives([0]), KEY) for t in (BUYS, KNOWS)]
    assert not torch.equal(*drawn)


def test_uniform_negatives_may_be_partners() -> None:
    everything = [(0, item) for item in range(7)]
    drawn = graph_of(everything, []).sample_negatives(BUYS, UniformNegatives(200), positives([0]), KEY)
    assert set(drawn.flatten().tolist()) == set(range(7))


@pytest.mark.parametrize(
    ("degree", "power", "weight"),
    [(0, 0.75, 0), (1, 0.75, 256), (16, 0.75, 2048), (3, 1.0, 768), (10**9, 0.25, 45523)],
)
def test_weights_are_whole_numbers(degree: int, power: float, weight: int) -> None:
    assert degree_weights(torch.tensor([degree, degree]), power).tolist() == [weight, weight]


def test_a_node_is_as_likely_as_its_degree_says() -> None:
    graph = graph_of([(user, item) for item in range(4) for user in range(1 + 2 * item)], [])
    drawn = graph.sample_negatives(BUYS, DegreeNegatives(8000, power=0.75), positives([0]), KEY)
    seen = Counter(drawn.flatten().tolist())
    weights = [(1 + 2 * item) ** 0.75 for item in range(4)]
    for item, weight in enumerate(weights):
        mean = 8000 * weight / sum(weights)
        assert abs(seen[item] - mean) < 5 * mean**0.5


def test_original_ids_decide_and_not_the_numbering() -> None:
    graph = graph_of([(0, 1), (1, 2), (2, 2), (4, 5)], [])
    order = torch.tensor([4, 0, 6, 2, 5, 1, 3])  # the original id of each new number
    number = order.argsort()
    renumbered = graph_of(
        [(0, int(number[1])), (1, int(number[2])), (2, int(number[2])), (4, int(number[5]))], []
    )
    renumbered = replace(renumbered, originals={"item": order})
    for rule in (UniformNegatives(9, exact=True), DegreeNegatives(9)):
        drawn = [g.sample_negatives(BUYS, rule, positives([0, 1, 2]), KEY) for g in (graph, renumbered)]
        assert torch.equal(drawn[0], order[drawn[1]])


def test_before_any_node_exists_nothing_can_be_drawn() -> None:
    graph = graph_of([(0, 1)], [], times=[5] * 7)
    with pytest.raises(ValueError, match="no 'item' node at time 4 can be drawn by UniformNegatives"):
        graph.sample_negatives(BUYS, UniformNegatives(), positives([0], [4]), KEY)


def test_of_an_edge_type_without_edges_nothing_can_be_drawn_by_degree() -> None:
    with pytest.raises(ValueError, match="no 'item' node can be drawn by DegreeNegatives"):
        graph_of([], []).sample_negatives(BUYS, DegreeNegatives(), positives([0]), KEY)


def test_an_unknown_edge_type_is_named() -> None:
    with pytest.raises(ValueError, match="no edge type"):
        graph_of([], []).sample_negatives(("a", "b", "c"), UniformNegatives(), positives([0]), KEY)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UniformNegatives(0), "per_positive 0: must be a whole number, 1 or more"),
        (lambda: DegreeNegatives(power=0.6), "power 0.6: must be 0.25, 0.5, 0.75 or 1.0"),
        (lambda: UniformNegatives(mode="both"), "both"),
    ],
)
def test_negatives_that_cannot_be_are_named(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def folder_of(path: Path) -> Path:
    edges = EdgeTable(torch.tensor([0, 0, 2, 2]), torch.tensor([1, 1, 0, 3]))
    return write_graph(path, {"user": NodeTable(3), "item": NodeTable(4)}, {BUYS: edges})


def test_the_sorted_copy_is_kept_beside_the_folder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "shop")
    rule, wanted = UniformNegatives(20, exact=True), positives([0, 1, 2])
    first = open_csc_graph(folder).sample_negatives(BUYS, rule, wanted, KEY)
    kept = list((folder / "derived").rglob("*.npy"))
    assert len(kept) == 2
    written = [file.stat().st_mtime_ns for file in kept]
    assert torch.equal(open_csc_graph(folder).sample_negatives(BUYS, rule, wanted, KEY), first)
    assert [file.stat().st_mtime_ns for file in kept] == written
    assert set(first[0].tolist()) == {0, 2, 3}


def test_a_copy_of_another_graph_is_not_taken(tmp_path: Path) -> None:
    rule, wanted = UniformNegatives(20, exact=True), positives([2])
    open_csc_graph(folder_of(tmp_path / "shop")).sample_negatives(BUYS, rule, wanted, KEY)
    other = write_graph(
        tmp_path / "other",
        {"user": NodeTable(3), "item": NodeTable(4)},
        {BUYS: EdgeTable(torch.tensor([2]), torch.tensor([2]))},
    )
    shutil.copytree(tmp_path / "shop" / "derived", other / "derived")
    drawn = open_csc_graph(other).sample_negatives(BUYS, rule, wanted, KEY)
    assert set(drawn.flatten().tolist()) == {0, 1, 3}


@given(
    weights=st.lists(st.sampled_from([0.0, 0.5, 3.0]), min_size=7, max_size=7),
    times=st.lists(st.integers(0, 3), min_size=7, max_size=7),
    exact=st.booleans(),
)
def test_weighted_negatives_have_a_weight_and_may_also_be_exact_and_in_time(
    weights: list[float], times: list[int], exact: bool
) -> None:
    columns = {"item": {"popularity": torch.tensor(weights), "time": torch.tensor(times)}}
    bought = [(0, 1), (0, 4)]
    graph = csc_graph_from_edges({"user": 7, "item": 7}, {BUYS: _ends(bought)}, columns=columns)
    rule = WeightedNegatives("popularity", 80, exact=exact)
    partners = {item for _, item in bought} if exact else set()
    allowed = {item for item in range(7) if weights[item] and times[item] <= 2} - partners
    if not allowed:
        with pytest.raises(ValueError, match="WeightedNegatives"):
            graph.sample_negatives(BUYS, rule, positives([0, 0], [2, 2]), KEY)
        return
    drawn = graph.sample_negatives(BUYS, rule, positives([0, 0], [2, 2]), KEY)
    assert set(drawn.flatten().tolist()) == allowed


def test_weighted_negatives_come_in_proportion() -> None:
    weights = torch.tensor([1.0, 2.0, 0.0, 5.0, 1.0, 1.0, 0.0])
    graph = csc_graph_from_edges(
        {"user": 7, "item": 7}, {BUYS: _ends([])}, columns={"item": {"popularity": weights}}
    )
    drawn = graph.sample_negatives(BUYS, WeightedNegatives("popularity", 20_000), positives([0]), KEY)
    share = torch.bincount(drawn.flatten(), minlength=7) / 20_000
    torch.testing.assert_close(share, weights / 10, atol=0.012, rtol=0)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (None, r"'item' nodes have no column 'popularity' of one number each; there are \['time'\]"),
        (torch.ones(7, 2), r"'item' nodes have no column 'popularity' of one number each"),
        (torch.tensor([1.0, -2, 0, 0, 0, 0, 0]), "'popularity' of 'item' nodes: weight -2.0 at position 1"),
    ],
)
def test_weights_that_cannot_be_drawn_by_are_named(column: Tensor | None, message: str) -> None:
    columns = {"time": torch.arange(7), **({} if column is None else {"popularity": column})}
    graph = csc_graph_from_edges({"user": 7, "item": 7}, {BUYS: _ends([])}, columns={"item": columns})
    with pytest.raises(ValueError, match=message):
        graph.sample_negatives(BUYS, WeightedNegatives("popularity"), positives([0]), KEY)
