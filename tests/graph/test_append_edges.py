"""New edges of one type: places by time, columns without values, and types that stay as they are."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from khop import EdgeTable, NodeTable, open_folder, write_graph
from khop.graph.added_rows import AddedEdges, AddedNodes, AddedRows
from khop.graph.append_rows import Appending
from khop.graph.folder_writer import FolderWriter
from khop.graph.manifest import write_manifest
from khop.graph.progress import Meter

LIKES, KNOWS = ("user", "likes", "item"), ("user", "knows", "user")


def write_base(path: Path, sort_by: str | None = "time") -> Path:
    likes = {"time": np.array([5, 1, 5]), "split": np.array([0, 1, 2], np.int8)}
    edges = {
        LIKES: EdgeTable(np.array([0, 1, 2]), np.array([0, 0, 1]), likes),
        KNOWS: EdgeTable(np.array([0]), np.array([1])),
    }
    return write_graph(path, {"user": NodeTable(3), "item": NodeTable(2)}, edges, sort_by=sort_by)


def appended(base: Path, out: Path, new: AddedRows) -> Path:
    out.mkdir()
    write_manifest(out, Appending(open_folder(base), new, FolderWriter(out, Meter(0))).write())
    return out


def likes(sources: list[int], items: list[int], times: list[int]) -> AddedRows:
    columns = {"time": np.array(times)}
    edges = AddedEdges(np.array(sources), np.array(items), np.arange(len(sources)), columns)
    return AddedRows({}, {LIKES: edges})


def test_new_edges_follow_equal_times(tmp_path: Path) -> None:
    out = appended(write_base(tmp_path / "base"), tmp_path / "out", likes([2, 1, 0], [0, 0, 0], [1, 5, 3]))
    folder = open_folder(out)
    assert folder.csc(LIKES).indices.tolist() == [1, 2, 0, 0, 1, 2]
    assert folder.columns()[LIKES]["time"].tolist() == [1, 1, 3, 5, 5, 5]
    edge_id = folder.edge_id(LIKES)
    assert edge_id is not None
    assert edge_id.tolist() == [1, 3, 5, 0, 4, 2]


def test_edges_without_the_column_are_in_no_split(tmp_path: Path) -> None:
    out = appended(write_base(tmp_path / "base"), tmp_path / "out", likes([2], [1], [9]))
    split = open_folder(out).columns()[LIKES]["split"]
    assert (split.dtype, split.tolist()) == (torch.int8, [1, 0, 2, -1])


def test_rows_in_the_order_of_input_end_with_new_edges(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", sort_by=None)
    out = appended(base, tmp_path / "out", likes([2], [0], [0]))
    assert open_folder(out).csc(LIKES).indices.tolist() == [0, 1, 2, 2]


def test_types_without_new_rows_are_the_same_files(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    out = appended(base, tmp_path / "out", likes([2], [1], [9]))
    for name in ("indptr", "indices"):
        files = [folder / "edges" / "user__knows__user" / f"{name}.npy" for folder in (base, out)]
        assert os.path.samefile(*files)
    new_users = AddedRows({"user": AddedNodes(2)}, {})
    more = appended(base, tmp_path / "more", new_users)
    assert open_folder(more).csc(KNOWS).indptr.tolist() == [0, 0, 1, 1, 1, 1]
    indices = [folder / "edges" / "user__knows__user" / "indices.npy" for folder in (base, more)]
    assert os.path.samefile(*indices), "new nodes without edges"
