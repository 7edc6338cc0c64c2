"""A client knows types, columns, counts and splits of a graph on servers, and nothing else."""

from __future__ import annotations

import json

import pytest

import khop
from khop.api.serve import ServedGraph
from khop.servers.description import read_description
from khop.servers.errors import WrongVersion
from khop.servers.service import Service


def test_a_description_comes_back_as_the_graph_is(typed_graph: khop.Graph) -> None:
    found = read_description(Service(ServedGraph.of(typed_graph)).description(), "server")
    assert typed_graph.folder is not None
    assert found.schema == typed_graph.schema
    assert list(found.schema.columns) == list(typed_graph.schema.columns)
    assert found.fingerprint == typed_graph.folder.fingerprint
    assert found.nodes == {t: typed_graph.num_nodes(t) for t in typed_graph.schema.node_types}
    assert found.edges == {t: typed_graph.num_edges(t) for t in typed_graph.schema.edge_types}
    assert found.splits == {
        name: {t: ids.numel() for t, ids in typed_graph.split(name).items()}
        for name in typed_graph.split_names
    }
    assert found.renumbered == ()


@pytest.mark.parametrize("name", ["wire", "randomness"])
def test_another_version_is_refused_when_a_client_connects(typed_graph: khop.Graph, name: str) -> None:
    given = json.loads(Service(ServedGraph.of(typed_graph)).description())
    given[name] = 7
    with pytest.raises(WrongVersion, match=f"server has version 7 of {name}"):
        read_description(json.dumps(given).encode(), "server")
