"""A client knows types, columns, counts and splits of a graph on servers, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from scipy import sparse

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


def test_a_sparse_column_is_known_with_its_width(tmp_path: Path) -> None:
    words = sparse.random(5, 60, 0.05, format="csr", random_state=1)
    ring = khop.EdgeTable(torch.arange(5), torch.arange(5).roll(1))
    folder = khop.write_graph(
        tmp_path / "g", {"n": khop.NodeTable(5, {"x": words})}, {("n", "to", "n"): ring}
    )
    graph = khop.open_graph(folder)
    found = read_description(Service(ServedGraph.of(graph)).description(), "server")
    assert found.schema == graph.schema
    assert found.schema.column("n", "x").width == 60


@pytest.mark.parametrize("name", ["wire", "randomness"])
def test_another_version_is_refused_when_a_client_connects(typed_graph: khop.Graph, name: str) -> None:
    given = json.loads(Service(ServedGraph.of(typed_graph)).description())
    given[name] += 1
    with pytest.raises(WrongVersion, match=f"server has version {given[name]} of {name}"):
        read_description(json.dumps(given).encode(), "server")
