"""Folders of parts hold what the graph held: every node, edge and number once, in its order.

Clusters are a column that the partitioner makes.

Arrays of all nodes follow the new numbering; splits keep the order of their seeds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

import khop
from khop.api.partition import partition_graph
from khop.data.partition.methods import PARTITIONERS
from khop.data.partition.partition import Renumbering, whole_arrays
from khop.data.partition.verify import verify_partition
from khop.graph.folder import GraphFolder, open_folder
from khop.graph.partitions.parts_folder import open_part
from khop.schema import EdgeType
from support.shop_folders import write_small_shop
from support.small_folders import write_learnable_graph
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


@pytest.mark.core(2)
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


def test_clusters_are_a_column_of_the_copy_and_everything_else_is_equal(tmp_path: Path) -> None:
    source = write_learnable_graph(tmp_path / "a", nodes=200)
    notes: list[str] = []
    target = khop.cluster_graph(source, tmp_path / "b", 8, notice=lambda what, *_: notes.append(what))
    before, after = open_folder(source), open_folder(target)
    columns, expected = after.columns()["item"], before.columns()["item"]
    cluster = columns["cluster"]
    assert cluster.dtype == torch.int32
    sizes = torch.bincount(cluster.long(), minlength=8)
    assert sizes.numel() == 8
    assert int(sizes.max()) <= 1.1 * 200 / 8
    assert all(torch.equal(columns[name], expected[name]) for name in expected)
    assert all(torch.equal(after.split(n)["item"], before.split(n)["item"]) for n in ("train", "val", "test"))
    edge_type = ("item", "like", "item")
    assert torch.equal(after.csc(edge_type).indices, before.csc(edge_type).indices)
    assert notes


def test_clusters_of_streaming_have_more_edges_inside_than_random_ones(tmp_path: Path) -> None:
    source = write_learnable_graph(tmp_path / "a", nodes=200)
    inside = {}
    for method in ("ldg", "random"):
        graph = khop.open_graph(khop.cluster_graph(source, tmp_path / method, 5, method=method))
        clusters, csc = khop.clusters_of(graph)["item"], graph.csc(["item", "like", "item"])
        inside[method] = int((clusters[csc.indices] == clusters[csc.destinations()]).sum())
    assert inside["ldg"] > 1.3 * inside["random"]


def test_parts_have_the_clusters_of_the_whole_graph(tmp_path: Path) -> None:
    source = write_learnable_graph(tmp_path / "a", nodes=120)
    whole = khop.cluster_graph(source, tmp_path / "b", 4, column="c")
    khop.partition_graph(whole, tmp_path / "parts", 3)
    parts = khop.open_graph(tmp_path / "parts")
    originals, expected = parts.original_ids("item"), khop.clusters_of(khop.open_graph(whole), "c")["item"]
    assert originals is not None
    assert torch.equal(khop.clusters_of(parts, "c")["item"], expected[originals])


def test_bad_requests_are_named(tmp_path: Path) -> None:
    source = write_learnable_graph(tmp_path / "a", nodes=50)
    with pytest.raises(ValueError, match="'x': 'item' nodes already have it"):
        khop.cluster_graph(source, tmp_path / "b", 4, column="x")
    with pytest.raises(ValueError, match="clusters 0"):
        khop.cluster_graph(source, tmp_path / "b", 0)
    graph = khop.open_graph(source)
    with pytest.raises(ValueError, match=r"'item' nodes lack it; write it with khop\.cluster_graph"):
        khop.clusters_of(graph)
    with pytest.raises(ValueError, match="must be one whole number per node"):
        khop.clusters_of(graph, "x")
    assert not (tmp_path / "b").exists()


@dataclass(frozen=True)
class Returned:
    """A method that returns some value."""

    value: object
    passes = 1

    def assign(self, request: object) -> object:
        return self.value


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (torch.zeros(49, dtype=torch.int32), r"shape \(49,\): must have the part of each of the 50 nodes"),
        (torch.zeros(51, dtype=torch.int32), r"shape \(51,\): must have the part of each of the 50 nodes"),
        (torch.zeros(50, 1, dtype=torch.int32), r"shape \(50, 1\): must have the part"),
        (torch.full((50,), 3), "part 3: must be 0 to 2"),
        (torch.full((50,), -1), "part -1: must be 0 to 2"),
        (torch.zeros(50), r"torch.float32: must be a tensor of int32"),
        ([0] * 50, r"list: must be a tensor of int32"),
    ],
)
def test_what_a_method_returns_is_checked(tmp_path: Path, value: object, problem: str) -> None:
    source = write_learnable_graph(tmp_path / "a", nodes=50)
    for work in (khop.partition_graph, khop.cluster_graph):
        with pytest.raises(ValueError, match=rf"^method '.*:Returned': assign returned .*{problem}"):
            work(source, tmp_path / "b", 3, method=Returned(value))
    assert not (tmp_path / "b").exists()


def test_arrays_are_those_of_the_graph_by_new_ids(tmp_path: Path) -> None:
    folder = open_folder(write_small_shop(tmp_path / "shop"))
    assigned = {"user": torch.tensor([1, 0, 1, 0]).int(), "item": torch.tensor([0, 1, 0]).int()}
    numbers = Renumbering.of(assigned, 2)
    arrays = dict(whole_arrays(folder, numbers))
    for name in ("train", "test"):
        ids = arrays[f"nodes/item/splits/{name}.npy"]
        assert torch.equal(numbers.old_ids["item"][ids], folder.split(name)["item"])
    assert arrays["nodes/user/original_id.npy"].tolist() == [1, 3, 0, 2]
    assert arrays["nodes/item/original_id.npy"].tolist() == [7, 6, 5]  # the ids of the graph before
    assert arrays["nodes/item/y.npy"].tolist() == [0, 2, -1]
    assert "nodes/item/x.npy" not in arrays  # rows of features stay with their parts
    before = folder.csc(("user", "buys", "item")).degrees()
    assert torch.equal(arrays["edges/user__buys__item/degrees.npy"].long(), before[numbers.old_ids["item"]])
