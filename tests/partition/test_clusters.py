"""Clusters are a column that the partitioner makes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import khop
from khop.graph.folder import open_folder
from support.small_folders import write_learnable_graph


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
    with pytest.raises(ValueError, match="'x': 'item' nodes have it already"):
        khop.cluster_graph(source, tmp_path / "b", 4, column="x")
    with pytest.raises(ValueError, match="clusters 0"):
        khop.cluster_graph(source, tmp_path / "b", 0)
    graph = khop.open_graph(source)
    with pytest.raises(ValueError, match=r"'item' nodes lack it; write it by khop\.cluster_graph"):
        khop.clusters_of(graph)
    with pytest.raises(ValueError, match="must be one whole number per node"):
        khop.clusters_of(graph, "x")
    assert not (tmp_path / "b").exists()
