"""Columns of parts lie where they are asked to, and rows kept in memory are those that lie in each part."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from khop.api.partition import partition_graph
from khop.features.cache_plan import CachePlan
from khop.features.disk_piece import DiskPiece
from khop.features.store import Rows
from khop.features.table import ColumnPieces
from khop.graph.build import write_graph
from khop.graph.tables import NodeTable
from khop.partition.column_pieces import column_pieces, is_on_disk
from khop.partition.local_partition_features import LocalPartitionFeatures
from khop.partition.parts_folder import PartsFolder, open_parts

NODES = 3000
PLENTY = 1 << 40


@pytest.fixture
def parts(tmp_path: Path) -> PartsFolder:
    columns = {"x": torch.randn(NODES, 9), "half": torch.randn(NODES, 3).half(), "age": torch.arange(NODES)}
    write_graph(tmp_path / "g", {"a": NodeTable(columns=columns)}, {})
    partition_graph(tmp_path / "g", tmp_path / "parts", 3, method="hash")
    return open_parts(tmp_path / "parts")


def on_disk(pieces: ColumnPieces) -> list[str]:
    return sorted(name for name, of_column in pieces.items() if is_on_disk({name: of_column}))


def test_columns_lie_where_they_are_asked_to_or_where_they_fit(parts: PartsFolder) -> None:
    assert on_disk(column_pieces(parts, {}, PLENTY)["a"]) == []
    assert on_disk(column_pieces(parts, {"half": "disk"}, PLENTY)["a"]) == ["half"]
    whole = sum(entry.data_bytes for part in parts.parts for entry in part.arrays.values())
    pieces = column_pieces(parts, {}, whole - NODES * 9 * 2)
    assert on_disk(pieces["a"]) == ["x"]
    places = {"x": "mapped", "half": "host"}
    assert on_disk(column_pieces(parts, places, 0)["a"]) == ["age", "original_id"]


def test_rows_in_memory_need_no_file(parts: PartsFolder) -> None:
    mapped = LocalPartitionFeatures(parts, room_bytes=PLENTY)
    disk = LocalPartitionFeatures(parts, places={"x": "disk", "half": "disk"}, room_bytes=PLENTY)
    visits = torch.rand(NODES, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    plan = CachePlan.of(parts.schema, {"a": ("x", "half", "age")}, {"a": visits}, 60_000)
    cached = disk.cached(plan)
    ids = torch.randint(NODES, (4000,), generator=torch.Generator().manual_seed(4))
    rows = Rows(ids, ("half", "age", "x"), {"x": 900}, frozenset({"half"}))
    expected = mapped.gather({"a": rows})["a"]
    for store in (disk, cached, cached.with_threads(2)):
        found = store.gather({"a": rows})["a"]
        assert list(found) == list(expected)
        assert all(torch.equal(found[name], expected[name]) for name in found)
    kept = plan.ids["a"]
    expected = mapped.gather({"a": Rows(kept, ("x",))})["a"]
    sizes = [piece.kept.shape[0] for piece in cached.pieces["a"]["x"] if isinstance(piece, DiskPiece)]
    assert len(sizes) == 3
    assert sum(sizes) == kept.numel()
    for part in parts.parts:
        os.truncate(part.path / "nodes/a/x.npy", 200)
    assert torch.equal(cached.gather({"a": Rows(kept, ("x",))})["a"]["x"], expected["x"])
    with pytest.raises(ValueError, match=r"x.npy: row .* cannot be read: the file ends before it"):
        disk.gather({"a": Rows(kept, ("x",))})
