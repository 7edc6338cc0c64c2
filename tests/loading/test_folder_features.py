"""Columns of a folder are mapped, copied or read from disk, by request or by what fits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop.features.disk_table import DiskTable
from khop.features.table import FeatureTable
from khop.graph.build import write_graph
from khop.graph.folder import GraphFolder, open_folder
from khop.graph.tables import NodeTable
from khop.loading.device_placement import StorePlace
from khop.loading.folder_features import folder_features

ROWS = 1000


@pytest.fixture
def folder(tmp_path: Path) -> GraphFolder:
    columns = {"x": torch.rand(ROWS, 8), "y": torch.arange(ROWS)}
    return open_folder(write_graph(tmp_path / "g", {"a": NodeTable(columns=columns)}, {}))


def files(folder: GraphFolder, places: dict[str, StorePlace], room_bytes: int) -> list[str]:
    found = folder_features(folder, places, room_bytes)
    return sorted(found.files["a"]) if isinstance(found, DiskTable) else []


def test_the_largest_columns_are_read_from_disk_where_memory_does_not_hold_all(folder: GraphFolder) -> None:
    x_bytes, y_bytes = ROWS * 8 * 4, ROWS * 8
    assert files(folder, {}, x_bytes + y_bytes) == []
    assert files(folder, {}, x_bytes + y_bytes - 1) == ["x"]
    assert files(folder, {}, y_bytes - 1) == ["x", "y"]


def test_a_request_goes_before_what_fits(folder: GraphFolder) -> None:
    assert files(folder, {"y": StorePlace.DISK}, 1 << 30) == ["y"]
    assert files(folder, {"x": StorePlace.MAPPED}, 0) == ["y"]
    assert files(folder, {"x": StorePlace.HOST, "y": StorePlace.MAPPED}, 0) == []


def test_columns_in_memory_are_copies(folder: GraphFolder) -> None:
    copied, mapped = folder_features(folder, {"x": StorePlace.HOST}), folder_features(folder)
    assert isinstance(copied, FeatureTable)
    assert isinstance(mapped, FeatureTable)
    for name, is_copied in (("x", True), ("y", False)):
        ours, theirs = copied.columns["a"][name], mapped.columns["a"][name]
        assert torch.equal(ours, theirs)
        assert (ours.data_ptr() != theirs.data_ptr()) == is_copied
