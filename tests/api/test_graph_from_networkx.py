"""NetworkX graphs become graphs."""

from __future__ import annotations

import networkx
import numpy as np
import pytest

import khop

EDGE = ("node", "to", "node")


def ends(graph: khop.Graph) -> list[tuple[int, int]]:
    csc = graph.csc(EDGE)
    return sorted(zip(csc.indices.tolist(), csc.destinations().tolist(), strict=True))


def test_nodes_edges_and_their_numbers() -> None:
    given = networkx.DiGraph()
    given.add_node("b", x=[1.0, 2.0], age=3, club="red")
    given.add_node("a", x=[3.0, 4.0], age=5)
    given.add_edge("a", "b", weight=0.5)
    with pytest.warns(UserWarning, match="attribute 'club' of nodes is left out: it has text"):
        graph = khop.graph_from_networkx(given)
    assert ends(graph) == [(1, 0)]
    assert graph.columns["node"]["x"].tolist() == [[1, 2], [3, 4]]
    assert graph.columns["node"]["age"].tolist() == [3, 5]
    assert set(graph.columns["node"]) == {"x", "age"}
    assert graph.columns[EDGE]["weight"].tolist() == [0.5]


def test_undirected_edges_are_there_in_both_directions() -> None:
    given = networkx.les_miserables_graph()
    graph = khop.graph_from_networkx(given)
    rows = {node: row for row, node in enumerate(given)}
    both = {pair for u, v in given.edges for pair in ((rows[u], rows[v]), (rows[v], rows[u]))}
    assert ends(graph) == sorted(both)
    assert graph.schema.reverse(EDGE) == EDGE
    assert graph.columns[EDGE]["weight"].shape == (2 * given.number_of_edges(),)


def test_empty_graphs_lists_of_different_lengths_and_other_objects() -> None:
    assert khop.graph_from_networkx(networkx.Graph()).num_nodes("node") == 0
    given = networkx.Graph()
    given.add_node(0, x=[1.0], y=np.ones(2))
    given.add_node(1, x=[1.0, 2.0], y=np.ones(2))
    with pytest.warns(UserWarning, match="'x' of nodes is left out: its lists are not numbers of one length"):
        assert set(khop.graph_from_networkx(given).columns["node"]) == {"y"}
    with pytest.raises(ValueError, match="must be a NetworkX graph"):
        khop.graph_from_networkx({0: [1]})
