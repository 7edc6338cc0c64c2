"""A graph written as a folder has everything of the graph that it was read from."""

from __future__ import annotations

from pathlib import Path

import pytest

import khop
from khop.graph.csc_graph import open_csc_graph
from khop.graph.folder import GraphFolder, open_folder
from khop.graph.save import save_graph
from support.small_typed_folders import write_typed_graph


def saved(folder: GraphFolder, path: Path, sort_by: str | None = None) -> GraphFolder:
    splits = {name: folder.split(name) for name in folder.split_names}
    graph = open_csc_graph(folder)
    return open_folder(save_graph(path, graph, folder.columns(), splits, None, sort_by, origin=folder))


def test_a_saved_folder_has_the_arrays_of_its_origin(shop: Path, tmp_path: Path) -> None:
    origin = open_folder(shop)
    copy = saved(origin, tmp_path / "copy")
    assert copy.schema == origin.schema
    differing = {file for file, entry in copy.arrays.items() if origin.arrays.get(file) != entry}
    assert differing == set()
    # Where the rows stood in the tables that the origin was written from is not of the graph.
    assert {Path(file).name for file in origin.arrays.keys() - copy.arrays.keys()} <= {"edge_id.npy"}


def test_sorting_while_saving_is_sorting_while_writing(tmp_path: Path) -> None:
    by_time = open_folder(write_typed_graph(tmp_path / "by-time"))
    again = saved(by_time, tmp_path / "again", sort_by="time")
    assert {file for file, entry in again.arrays.items() if by_time.arrays.get(file) != entry} == set()


def test_a_damaged_origin_is_not_copied(shop: Path, tmp_path: Path) -> None:
    file = shop / "nodes" / "item" / "x.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(ValueError, match=r"x\.npy: checksum differs"):
        khop.open_graph(shop).save(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
