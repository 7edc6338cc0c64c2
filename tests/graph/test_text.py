"""A graph is shown in five lines, without its tensors."""

from __future__ import annotations

from pathlib import Path

import torch

from khop import EdgeTable, Graph, NodeTable, open_graph, write_graph
from khop.features.table import FeatureTable
from khop.graph.csc_graph import csc_graph_from_edges
from khop.graph.text import WIDTH
from support.typed_shop import BUYS, shop


def test_a_folder_shows_its_path_nodes_edges_columns_and_splits(tmp_path: Path) -> None:
    item = NodeTable(
        columns={"x": torch.zeros(1200, 4), "y": torch.arange(1200) % 3},
        splits={"train": torch.arange(1000), "val": torch.arange(1000, 1200)},
        num_classes={"y": 3},
    )
    edges = {("item", "next", "item"): EdgeTable(torch.arange(1200), torch.arange(1200).roll(1))}
    path = write_graph(tmp_path / "g", {"item": item}, edges)
    assert repr(open_graph(path)).splitlines() == [
        f"khop.Graph of {path}",
        "  nodes    item 1,200",
        "  edges    item next item 1,200",
        "  columns  item: x float32[4], y int64 (3 classes)",
        "  splits   train 1,000 item, val 200 item",
    ]


def test_a_graph_in_memory_counts_its_edges() -> None:
    lines = repr(shop()).splitlines()
    assert lines[0] == "khop.Graph in memory"
    assert f"user buys item {shop().csc(BUYS).num_edges}" in lines[2]
    assert lines[-1] == "  splits   none"
    assert "tensor" not in "".join(lines)


def test_many_types_are_cut_to_one_line() -> None:
    counts = {f"type number {i}": i for i in range(40)}
    ends = torch.empty(0, dtype=torch.int64)
    topology = csc_graph_from_edges(counts, {(t, "to", t): (ends, ends) for t in counts})
    lines = repr(Graph(topology, FeatureTable({}))).splitlines()
    assert len(lines) == 5
    assert all(len(line) <= WIDTH for line in lines)
    assert lines[1].startswith("  nodes    type number 0 0, type number 1 1, ")
    assert lines[1].endswith(", ...")


def test_a_name_longer_than_a_line_is_cut() -> None:
    topology = csc_graph_from_edges({"n" * 300: 1}, {})
    assert repr(Graph(topology, FeatureTable({}))).splitlines()[1] == f"  nodes    {'n' * (WIDTH - 15)} ..."
