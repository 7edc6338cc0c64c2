"""Servers that were started with the same graph have equal views, splits and links."""

from __future__ import annotations

import pytest
import torch

import khop
from khop.api.serve import ServedGraph
from khop.servers.json_fields import Document
from khop.servers.served import Served
from support.small_typed_folders import BUYS, LIKE

SPLIT = {
    "by": "random", "edge_types": [list(BUYS)],
    "val": 0.2, "test": 0.1, "disjoint_share": 0.0, "negatives": 1, "label": None,
    "time": None, "seed": 3,
}  # fmt: skip


@pytest.fixture
def servers(typed_graph: khop.Graph) -> list[Served]:
    assert typed_graph.folder is not None
    return [ServedGraph.of(khop.open_graph(typed_graph.folder.path)) for _ in range(2)]


def test_servers_of_a_graph_have_its_fingerprint_and_splits(servers: list[Served]) -> None:
    first, second = servers
    assert (first.name, first.fingerprint) == (second.name, second.fingerprint)
    assert first.cut_offs == second.cut_offs
    assert first.splits.keys() == second.splits.keys() != set()
    for name, of_types in first.splits.items():
        assert of_types.keys() == second.splits[name].keys()
        assert all(torch.equal(ids, second.splits[name][t]) for t, ids in of_types.items())


def test_a_view_depends_on_the_graph_and_its_steps_alone(servers: list[Served]) -> None:
    first, second = servers
    first.viewed(Document([{"only": [list(LIKE)]}], "view"))  # a view that the other server never makes
    steps = [{"split_links": SPLIT, "part": "train"}]
    one, other = (served.viewed(Document(steps, "view")) for served in (first, second))
    assert one.links.keys() == other.links.keys() == {"train", "val", "test"}
    for part, links in one.links.items():
        assert links.digest() == other.links[part].digest()
    for edge_type in first.whole.graph.schema.edge_types:
        assert one.graph.num_edges(edge_type) == other.graph.num_edges(edge_type)
    assert one.graph.num_edges(BUYS) < first.whole.graph.num_edges(BUYS)
