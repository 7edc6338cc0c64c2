"""Random splits of labeled nodes, in a new folder that shares its arrays with the old one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import khop
from khop.data.resplit import resplit
from khop.graph.folder import open_folder
from khop.graph.verify import verify_folder


def labeled(folder: Path) -> Path:
    """100 items of which 80 have labels, and tags without."""
    y = torch.arange(100) % 4
    y[80:] = -1
    items = khop.NodeTable(
        columns={"x": torch.randn(100, 3), "y": y}, num_classes={"y": 4}, splits={"train": [1], "odd": [2, 3]}
    )
    nodes = {"item": items, "tag": khop.NodeTable(5, splits={"train": [0]})}
    edges = {"tag on item": khop.EdgeTable(torch.arange(5), torch.arange(5))}
    return khop.write_graph(folder, nodes, edges)


def test_splits_have_the_shares_and_every_labeled_node_once(tmp_path: Path) -> None:
    graph = labeled(tmp_path / "graph")
    counts = resplit(graph, tmp_path / "a", [0.6, 0.05], seed=42)
    assert counts == {"train": 48, "val": 4, "test": 28}
    opened = khop.open_graph(tmp_path / "a")
    splits = {name: opened.split(name)["item"] for name in counts}
    assert sorted(torch.cat([*splits.values()]).tolist()) == list(range(80))
    assert splits["train"].tolist() != sorted(splits["train"].tolist())
    assert opened.split("train")["tag"].tolist() == [0]  # of the other type, as before
    assert "odd" not in opened.split_names
    assert resplit(graph, tmp_path / "b", [0.5, 0.25, 0.125]) == {"train": 40, "val": 20, "test": 10}


def test_shares_of_all_nodes_leave_none_out(tmp_path: Path) -> None:
    graph = labeled(tmp_path / "graph")
    assert resplit(graph, tmp_path / "a", [0.33, 0.33, 0.34]) == {"train": 26, "val": 26, "test": 28}
    assert resplit(graph, tmp_path / "b", [0.33, 0.67, 0]) == {"train": 26, "val": 54, "test": 0}


def test_splits_depend_on_the_seed_alone(tmp_path: Path) -> None:
    graph = labeled(tmp_path / "graph")
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        resplit(graph, tmp_path / name, [0.6, 0.2], seed=seed)
    a, b, c = (khop.open_graph(tmp_path / name).split("train")["item"].tolist() for name in "abc")
    assert a == b != c


def test_arrays_are_shared_and_sound(tmp_path: Path) -> None:
    graph = labeled(tmp_path / "graph")
    resplit(graph, tmp_path / "out", [0.6, 0.2])
    folder = open_folder(tmp_path / "out")
    for file in folder.arrays:
        if "/splits/" not in file or "tag" in file:
            assert (tmp_path / "out" / file).samefile(graph / file)
    assert not verify_folder(tmp_path / "out")


@pytest.mark.parametrize("ratio", [[0.6], [-0.1, 0.2], [0.5, 0.2, 0.2, 0.1]])
def test_shares_that_are_none_are_refused(ratio: list[float], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be the shares of training, validation"):
        resplit(labeled(tmp_path / "graph"), tmp_path / "out", ratio)


def test_shares_of_more_than_all_nodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"0\.9, 0\.3.*the shares exceed 1, their sum is 1\.2"):
        resplit(labeled(tmp_path / "graph"), tmp_path / "out", [0.9, 0.3])
