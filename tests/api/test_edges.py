"""Edges of this process, of a whole graph and of one rank with all partitions.

In-degrees are the same for a graph in one piece, in parts and on servers.

Relations are counted in their column.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import khop
from khop.api.edges import edges_here, in_degrees, joined_rows
from khop.api.partition import partition_graph
from khop.graph.store import edge_values
from support.in_process import connected
from support.knowledge import BACK, FACT, RELATIONS, Triples, as_column
from support.one_rank import one_rank_graph
from support.small_typed_folders import BUYS, LIKE, write_typed_graph


def test_all_edges_are_here_in_one_process(tmp_path: Path) -> None:
    folder = write_typed_graph(tmp_path / "shop")
    graph = khop.open_graph(folder)
    csc, rows = graph.csc(BUYS), torch.randn(200, 3)
    indptr, indices = edges_here(graph, BUYS)
    assert torch.equal(indptr, csc.indptr)
    assert torch.equal(indices, csc.indices.long())
    assert joined_rows(graph, "item")(rows) is rows


def test_a_rank_with_all_partitions_has_the_edges_of_each(tmp_path: Path) -> None:
    folder = write_typed_graph(tmp_path / "shop")
    khop.partition_graph(folder, tmp_path / "parts", 3, method="random")
    graph = khop.open_graph(tmp_path / "parts")
    far = replace(graph, topology=one_rank_graph(tmp_path / "parts"))
    for found, expected in zip(edges_here(far, BUYS), edges_here(graph, BUYS), strict=True):
        assert torch.equal(found, expected)
    rows = torch.randn(200, 3, dtype=torch.float64)
    assert torch.equal(joined_rows(far, "item")(rows), rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_graph(tmp_path_factory.mktemp("graphs") / "shop")


def split_of(graph: khop.Graph) -> khop.LinkSplit:
    return khop.split_links(graph.only([BUYS, LIKE]), [BUYS], 0.2, 0.1, seed=2)


def test_they_count_the_edges_of_each_destination(folder: Path) -> None:
    split = split_of(khop.open_graph(folder))
    counts = Counter(split.train_links.edges[BUYS][1].tolist())
    found = in_degrees(split.train, BUYS, ())
    assert found.tolist() == [counts[node] for node in range(found.numel())]
    assert found.sum() > 0


def test_parts_in_one_process_have_those_of_the_whole(folder: Path, tmp_path: Path) -> None:
    partition_graph(folder, tmp_path / "parts", 3)
    whole, parts = (split_of(khop.open_graph(path)).test for path in (folder, tmp_path / "parts"))
    original = parts.original_ids(BUYS[2])
    assert original is not None
    assert torch.equal(in_degrees(parts, BUYS, ()), in_degrees(whole, BUYS, ())[original])


def test_on_servers_they_are_counted_in_the_links(folder: Path) -> None:
    graph = khop.open_graph(folder)
    here, there = split_of(graph), split_of(connected(graph))
    for name, lists in (("val", [there.train_links]), ("test", [there.train_links, there.val_links])):
        expected = in_degrees(getattr(here, name), BUYS, ())
        assert torch.equal(in_degrees(getattr(there, name), BUYS, lists), expected)


def test_the_count_is_the_largest_number_plus_one(tmp_path: Path) -> None:
    graph = as_column(tmp_path / "graph", Triples.drawn())
    assert khop.relation_count(graph, FACT, "r") == RELATIONS
    assert khop.relation_count(graph, " ".join(BACK), "r") == RELATIONS
    assert torch.equal(edge_values(graph, FACT, "r", torch.arange(5)), graph.columns[FACT]["r"][:5])


def test_unfit_columns_are_errors(tmp_path: Path) -> None:
    ends = torch.arange(3)
    columns = {"r": torch.tensor([0, -2, 1]), "w": torch.rand(3)}
    table = {FACT: khop.EdgeTable(ends, ends, columns)}
    graph = khop.open_graph(khop.write_graph(tmp_path / "graph", {"entity": khop.NodeTable(3)}, table))
    with pytest.raises(ValueError, match="relation -2 is below 0; number relations from 0"):
        khop.relation_count(graph, FACT, "r")
    with pytest.raises(
        ValueError, match=r"is float32 of shape .*: relations are whole numbers, one per edge"
    ):
        khop.relation_count(graph, FACT, "w")
    with pytest.raises(ValueError, match="not in the graph"):
        khop.relation_count(graph, FACT, "q")
