"""Random splits of labeled nodes, in a new folder that shares its arrays with the old one."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

import khop
from khop.api.split_links import edges_of_split
from khop.data.resplit import resplit
from khop.graph.folder import import_record, open_folder
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
    counts = resplit(graph, tmp_path / "a", [0.6, 0.05], seed=42).counts
    assert counts == {"train": 48, "val": 4, "test": 28}
    opened = khop.open_graph(tmp_path / "a")
    splits = {name: opened.split(name)["item"] for name in counts}
    assert sorted(torch.cat([*splits.values()]).tolist()) == list(range(80))
    assert splits["train"].tolist() != sorted(splits["train"].tolist())
    assert opened.split("train")["tag"].tolist() == [0]  # of the other type, as before
    assert "odd" not in opened.split_names
    assert resplit(graph, tmp_path / "b", [0.5, 0.25, 0.125]).counts == {"train": 40, "val": 20, "test": 10}


def test_shares_of_all_nodes_leave_none_out(tmp_path: Path) -> None:
    graph = labeled(tmp_path / "graph")
    assert resplit(graph, tmp_path / "a", [0.33, 0.33, 0.34]).counts == {"train": 26, "val": 26, "test": 28}
    assert resplit(graph, tmp_path / "b", [0.33, 0.67, 0]).counts == {"train": 26, "val": 54, "test": 0}


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


def dated() -> dict[str, Any]:
    """12 items, one a day: two classes before validation, a new one and none after it."""
    days = [datetime(2020, 1, day, tzinfo=UTC) for day in range(1, 13)]
    kinds = ["a", "b", "a", "b", "a", "b", "a", "b", "a", "b", "new", None]
    items = pa.table({"id": list(range(12)), "kind": kinds, "day": days})
    links = pa.table({"a": list(range(11)), "b": list(range(1, 12)), "day": days[1:]})
    return {
        "splits": {"time": {"val": days[6], "test": days[9]}},
        "nodes": {"item": {"rows": items, "id": "id", "label": "kind", "time": "day"}},
        "edges": {"item to item": {"rows": links, "source": "a", "destination": "b", "time": "day"}},
    }


def test_random_splits_have_no_cut_offs_of_a_split_by_time(tmp_path: Path) -> None:
    khop.import_tables(dated(), tmp_path / "graph")
    done = resplit(tmp_path / "graph", tmp_path / "out", [0.6, 0.2])
    before, graph = khop.open_graph(tmp_path / "graph"), khop.open_graph(tmp_path / "out")
    assert edges_of_split(before, "train").num_edges("item to item") < 11
    for name in done.counts:
        assert edges_of_split(graph, name).num_edges("item to item") == 11
    records = [dict(import_record(open_folder(tmp_path / name))) for name in ("graph", "out")]
    del records[0]["time_split"]
    assert records[0] == records[1]
    assert not verify_folder(tmp_path / "out")
    assert done.notes == (
        f"the time cut-offs of {tmp_path / 'graph'} are removed: all splits use all edges, and links are not "
        "split by time",
        "2 nodes of item are in no split: they have no label, or one of a class that was not in training when "
        "the graph was imported",
    )
    again = resplit(tmp_path / "out", tmp_path / "again", [0.6, 0.2])
    assert again.notes == done.notes[1:]


def test_classes_without_a_training_node_are_named(tmp_path: Path) -> None:
    done = resplit(labeled(tmp_path / "graph"), tmp_path / "out", [0, 0.5])
    assert done.notes == ("classes without a training node: 0, 1, 2, 3",)
    khop.import_tables(dated(), tmp_path / "dated")
    done = resplit(tmp_path / "dated", tmp_path / "none", [0, 0.5])
    assert done.notes[-1] == "classes without a training node: 'a', 'b'"


@pytest.mark.parametrize("ratio", [[0.6], [-0.1, 0.2], [0.5, 0.2, 0.2, 0.1]])
def test_shares_that_are_none_are_refused(ratio: list[float], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be the shares of training, validation"):
        resplit(labeled(tmp_path / "graph"), tmp_path / "out", ratio)


def test_shares_of_more_than_all_nodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"0\.9, 0\.3.*the shares exceed 1, their sum is 1\.2"):
        resplit(labeled(tmp_path / "graph"), tmp_path / "out", [0.9, 0.3])
