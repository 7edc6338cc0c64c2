"""Links of sources are found from the other end of the edges, with and without a reverse edge type."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import khop
from khop.api.edges import linked, without_edges
from khop.graph.build import write_graph
from khop.graph.tables import EdgeTable, NodeTable
from khop.schema import EdgeType

BUYS, BACK = ("user", "buys", "item"), ("item", "bought-by", "user")
USERS, ITEMS = torch.tensor([3, 0, 3, 1, 3]), torch.tensor([2, 1, 0, 1, 2])


def shop(path: Path, more: Mapping[EdgeType, EdgeTable] | None = None) -> khop.Graph:
    edges = {BUYS: EdgeTable(USERS, ITEMS), **(more or {})}
    return khop.open_graph(write_graph(path, {"user": NodeTable(5), "item": NodeTable(4)}, edges))


@pytest.mark.parametrize("kind", ["one way", "with a reverse"])
def test_they_are_those_of_the_edges(kind: str, tmp_path: Path) -> None:
    back = {BACK: EdgeTable(ITEMS, USERS, reverse_of=BUYS)}
    graph = shop(tmp_path / "shop", back if kind == "with a reverse" else None)
    sources = torch.tensor([4, 3, 0])
    at, destinations = linked(graph.in_one_piece("a test"), BUYS, sources)
    found = sorted(zip(sources[at].tolist(), destinations.tolist(), strict=True))
    assert found == [(0, 1), (3, 0), (3, 2), (3, 2)]


def test_nodes_without_an_edge_have_none_at_either_end(tmp_path: Path) -> None:
    edges = shop(tmp_path / "shop").in_one_piece("a test")
    assert without_edges(edges, "user").tolist() == [False, False, True, False, True]
    assert without_edges(edges, "item").tolist() == [False, False, False, True]
