"""Folders of parts hold what the graph held: every node, edge and number once, in its order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from khop.api.partition import partition_graph
from khop.graph.folder import GraphFolder, open_folder
from khop.partition.methods import PARTITIONERS
from khop.partition.part_files import open_part
from khop.partition.verify import verify_partition
from khop.schema import EdgeType
from support.small_typed_folders import write_typed_graph


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_graph(tmp_path_factory.mktemp("graphs") / "shop")


def _originals(parts: list[GraphFolder], node_type: str) -> Tensor:
    return torch.cat([part.columns()[node_type]["original_id"] for part in parts])


def _rows(folder: GraphFolder, edge_type: EdgeType, originals: Tensor | None = None) -> list[list[int]]:
    """The sources of each destination, in order; by original ids where those of the source type are given."""
    csc = folder.csc(edge_type)
    sources = csc.indices.long() if originals is None else originals[csc.indices.long()]
    return [row.tolist() for row in sources.tensor_split(csc.indptr[1:-1])]


@pytest.mark.parametrize("method", PARTITIONERS.builtin)
@pytest.mark.parametrize("parts", [1, 3])
def test_parts_hold_every_node_edge_and_number_once(
    shop: Path, tmp_path: Path, method: str, parts: int
) -> None:
    whole, out = open_folder(shop), tmp_path / "parts"
    book = partition_graph(shop, out, parts, method=method)
    folders = [open_part(out, book, part) for part in range(parts)]
    for node_type in whole.schema.node_types:
        ids = _originals(folders, node_type)
        assert sorted(ids.tolist()) == list(range(whole.num_nodes(node_type)))
        for name, column in whole.columns()[node_type].items():
            assert torch.equal(torch.cat([f.columns()[node_type][name] for f in folders]), column[ids])
            assert folders[0].schema.column(node_type, name) == whole.schema.column(node_type, name)
    for edge_type in whole.schema.edge_types:
        originals, rows = _originals(folders, edge_type[0]), _rows(whole, edge_type)
        found = [row for folder in folders for row in _rows(folder, edge_type, originals)]
        assert found == [rows[node] for node in _originals(folders, edge_type[2]).tolist()]
        assert folders[0].schema.reverse(edge_type) == whole.schema.reverse(edge_type)
    assert verify_partition(out) == []


def test_partitions_of_the_same_graph_say_so(shop: Path, tmp_path: Path) -> None:
    partition_graph(shop, tmp_path / "parts", 2)
    document = json.loads((tmp_path / "parts" / "partition.json").read_text())
    assert document["source"] == open_folder(shop).fingerprint
