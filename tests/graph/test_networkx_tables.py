"""Attributes of NetworkX graphs as columns."""

from __future__ import annotations

from pathlib import Path

import networkx
import pytest

import khop

EDGE = ("node", "to", "node")


def test_missing_numbers(tmp_path: Path) -> None:
    given = networkx.DiGraph()
    given.add_node(0, age=3)
    given.add_edge(0, 1, weight=2, size=2**70)
    given.add_edge(1, 0)
    with pytest.warns(UserWarning, match="have no number") as told:
        graph = khop.graph_from_networkx(given)
    assert [str(one.message) for one in told] == [
        "attribute 'age': 1 of 2 nodes have no number; they get NaN",
        "attribute 'weight': 1 of 2 edges have no number; they get 1",
        "attribute 'size': 1 of 2 edges have no number; they get 0, and 1 in size_missing",
    ]
    stored = khop.open_graph(graph.save(tmp_path / "g"))
    for one in (graph, stored):
        assert one.columns["node"]["age"].isnan().tolist() == [False, True]
        columns = {name: column.tolist() for name, column in one.columns[EDGE].items()}
        assert columns == {"weight": [1, 2], "size": [0, 2.0**70], "size_missing": [1, 0]}
