"""An opened graph is its folder: it pickles as a path, and options without effect are named."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from khop import EdgeTable, Graph, NodeTable, open_graph, write_graph
from support.typed_shop import shop

EDGE = ("node", "to", "node")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    nodes = {"node": NodeTable(6, {"x": torch.arange(12.0).view(6, 2)}, {"train": torch.tensor([5, 0, 2])})}
    edges = {EDGE: EdgeTable(torch.tensor([0, 1, 2, 3, 4, 0]), torch.tensor([1, 2, 2, 2, 5, 0]))}
    return write_graph(tmp_path / "graph", nodes, edges)


def test_a_graph_pickles_as_its_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    graph = open_graph(folder.name)
    written = pickle.dumps(graph)
    monkeypatch.chdir("/")
    again = pickle.loads(written)
    assert len(written) - len(os.fsencode(folder)) < 300  # names and a checksum; no array travels
    assert torch.equal(again.split("train")["node"], graph.split("train")["node"])


def test_a_graph_in_memory_pickles_whole_and_has_no_splits() -> None:
    again = pickle.loads(pickle.dumps(shop()))
    assert isinstance(again, Graph)
    assert again.num_nodes("user") == 40
    with pytest.raises(ValueError, match="no split 'train'; there are"):
        shop().split("train")


def test_options_of_partitions_given_for_a_whole_graph_have_no_effect_and_a_warning_says_so(
    folder: Path,
) -> None:
    with pytest.warns(UserWarning, match="graph: lanes 2 and wire int8: no effect, the graph") as told:
        open_graph(folder, lanes=2, wire="int8")
    assert len(told) == 1
    assert told[0].filename == __file__
