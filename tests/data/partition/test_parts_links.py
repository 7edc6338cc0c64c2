"""Negatives drawn over parts are those of the graph before it was cut."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop import (
    DegreeNegatives,
    DrawKey,
    EdgeTable,
    NodeTable,
    UniformNegatives,
    WeightedNegatives,
    write_graph,
)
from khop.api.partition import partition_graph
from khop.draw import DrawnNegatives, Positives
from khop.graph.folder import open_folder
from khop.graph.partitions.local_partitions import LocalPartitionGraph
from khop.graph.partitions.parts_folder import open_parts
from khop.graph.store import CscGraph, open_csc_graph
from support.parts_as_whole import OldIds
from support.small_typed_folders import BUYS, LIKE, write_typed_graph

KEY, KNOWS = DrawKey(5), ("user", "knows", "user")
BOUGHT = ("item", "bought", "user")
NODE = st.integers(0, 6)
PAIRS = st.lists(st.tuples(NODE, NODE), max_size=25)
RULES = st.builds(
    lambda of, exact: replace(of, exact=exact),
    st.sampled_from([UniformNegatives(5), DegreeNegatives(5, power=0.5), WeightedNegatives("weight", 5)]),
    st.booleans(),
)


def write_links(
    path: Path, buys: list[tuple[int, int]], knows: list[tuple[int, int]], times: list[int]
) -> Path:
    """Users and items that came at some time; purchases are there turned round, too."""
    of_buys, of_knows = (torch.tensor(p, dtype=torch.int64).view(-1, 2).T for p in (buys, knows))
    weights = torch.tensor([0.5, 1, 0, 2, 3, 1, 1])
    nodes = {
        "user": NodeTable(columns={"weight": weights}),
        "item": NodeTable(columns={"weight": weights.flip(0), "time": torch.tensor(times)}),
    }
    edges = {
        BUYS: EdgeTable(of_buys[0], of_buys[1]),
        BOUGHT: EdgeTable(of_buys[1], of_buys[0], reverse_of=BUYS),
        KNOWS: EdgeTable(of_knows[0], of_knows[1]),
    }
    return write_graph(path, nodes, edges)


def drawn_or_told(
    graph: CscGraph | LocalPartitionGraph,
    edge_type: tuple[str, str, str],
    rule: DrawnNegatives,
    asked: Positives,
) -> torch.Tensor | None:
    """None: for some link there is nothing to draw."""
    try:
        return graph.sample_negatives(edge_type, rule, asked, KEY)
    except ValueError:
        return None


def test_they_are_those_of_the_graph_before(tmp_path: Path, many_cuts: None) -> None:
    numbers = count()

    @given(
        buys=PAIRS,
        knows=PAIRS,
        times=st.lists(st.integers(0, 3), min_size=7, max_size=7),
        rules=st.lists(RULES, min_size=4, max_size=4),
        parts=st.integers(1, 3),
        limit=st.none() | st.integers(0, 4),
    )
    def check(
        buys: list[tuple[int, int]],
        knows: list[tuple[int, int]],
        times: list[int],
        rules: list[DrawnNegatives],
        parts: int,
        limit: int | None,
    ) -> None:
        home = tmp_path / f"{next(numbers)}"
        home.mkdir()
        whole = write_links(home / "whole", buys, knows, times)
        partition_graph(whole, home / "parts", parts, method="random")
        ids = OldIds(open_folder(whole), open_parts(home / "parts"))
        graphs = open_csc_graph(whole), LocalPartitionGraph(ids.parts)
        for rule, edge_type in zip(rules, (BUYS, KNOWS) * 2, strict=True):
            sources = torch.arange(7)
            until = None if limit is None else torch.full((7,), limit)
            asked = Positives(sources, sources * 3, until, None if limit is None else "time")
            new = replace(asked, sources=ids.new_nodes("user", sources))
            wanted = drawn_or_told(graphs[0], edge_type, rule, asked)
            found = drawn_or_told(graphs[1], edge_type, rule, new)
            assert (wanted is None) == (found is None)
            if wanted is not None and found is not None:
                assert torch.equal(ids.nodes[edge_type[2]][found], wanted)

    check()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("shop")
    partition_graph(write_typed_graph(home / "whole"), home / "parts", 3)
    return home


def test_some_parts_draw_for_their_sources_where_the_graph_has_the_edges_turned_round(shop: Path) -> None:
    everything, some = (
        LocalPartitionGraph(open_parts(shop / "parts")),
        LocalPartitionGraph(open_parts(shop / "parts", [1, 2])),
    )
    first, *_, end = some.folder.bounds("user")
    sources, rule = torch.arange(first, end), UniformNegatives(40, exact=True)
    asked = Positives(sources, sources)
    drawn = some.sample_negatives(BUYS, rule, asked, KEY)
    assert torch.equal(drawn, everything.sample_negatives(BUYS, rule, asked, KEY))
    assert torch.equal(
        drawn,
        LocalPartitionGraph(open_parts(shop / "parts", [1, 2])).sample_negatives(BUYS, rule, asked, KEY),
    )
    with pytest.raises(
        ValueError, match=rf"negatives of .*buys.*: source {first - 1}: not in \[{first}, {end}\)"
    ):
        some.sample_negatives(BUYS, rule, Positives(sources - 1, sources), KEY)
    stranger = Positives(torch.tensor([first - 1]), torch.tensor([0]))
    assert torch.equal(
        some.sample_negatives(BUYS, UniformNegatives(9), stranger, KEY),
        everything.sample_negatives(BUYS, UniformNegatives(9), stranger, KEY),
    )


def test_where_no_part_has_all_partners_of_a_source_the_way_out_is_named(shop: Path) -> None:
    some, rule = LocalPartitionGraph(open_parts(shop / "parts", [0])), UniformNegatives(exact=True)
    asked = Positives(torch.tensor([0]), torch.tensor([0]))
    with pytest.raises(
        ValueError, match=r"like.*are in all 3 parts; .*EdgeTable\(reverse_of=.*or use exact=False"
    ):
        some.sample_negatives(LIKE, rule, asked, KEY)
    assert LocalPartitionGraph(open_parts(shop / "parts")).sample_negatives(LIKE, rule, asked, KEY).shape == (
        1,
        1,
    )


def test_an_edge_type_that_is_not_there_is_named(shop: Path) -> None:
    graph, asked = (
        LocalPartitionGraph(open_parts(shop / "parts")),
        Positives(torch.tensor([0]), torch.tensor([0])),
    )
    with pytest.raises(ValueError, match=r"no edge type \('a', 'b', 'c'\)"):
        graph.sample_negatives(("a", "b", "c"), UniformNegatives(), asked, KEY)
