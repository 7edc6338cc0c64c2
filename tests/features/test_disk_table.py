"""Columns read from disk have the bits of the mapped ones, with a cache and without."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from khop.features.cache_plan import CachePlan
from khop.features.disk_table import DiskTable
from khop.features.store import FeatureStore, Rows
from khop.features.table import FeatureTable
from khop.graph.build import write_graph
from khop.graph.folder import GraphFolder, open_folder
from khop.graph.quantize import quantize
from khop.graph.tables import EdgeTable, NodeTable
from khop.loading.device_placement import StorePlace
from khop.loading.folder_features import folder_features
from khop.testing.feature_store import BUYS, PROMISES, Columns, Make, int64

ROWS = 3000


def on_disk(path: Path, columns: Columns) -> FeatureStore:
    edges = columns[BUYS]["price"].numel()
    in_order = EdgeTable(int64(*([0] * edges)), int64(*([0] * edges)), columns[BUYS])
    nodes = {name: NodeTable(columns=columns[name]) for name in ("user", "item")}
    return folder_features(open_folder(write_graph(path, nodes, {BUYS: in_order})), room_bytes=0)


@pytest.fixture(params=["disk", "two threads"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    threads = 1 if request.param == "disk" else 2
    return lambda columns: on_disk(tmp_path / "g", columns).with_threads(threads)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps(promise: Callable[[Make], None], make: Make) -> None:
    promise(make)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> GraphFolder:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 9, generator=generator)
    columns = {"half": x.half(), "small": quantize(x), "wide": x.double(), "age": torch.arange(ROWS)}
    nodes = {"a": NodeTable(columns=columns), "b": NodeTable(5)}
    return open_folder(write_graph(tmp_path_factory.mktemp("disk") / "g", nodes, {}))


def wanted() -> dict[object, Rows]:
    ids = torch.randint(0, ROWS, (4000,), generator=torch.Generator().manual_seed(1))
    names = ("age", "half", "small", "wide")
    return {"a": Rows(ids, names, {"wide": 700}, frozenset({"half", "small"}))}


def same(one: FeatureStore, other: FeatureStore) -> bool:
    ours, theirs = one.gather(wanted())["a"], other.gather(wanted())["a"]
    return list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_columns_of_every_kind_are_those_of_the_mapped_table(folder: GraphFolder) -> None:
    mapped = folder_features(folder)
    assert isinstance(mapped, FeatureTable)
    disk = folder_features(folder, room_bytes=0)
    assert isinstance(disk, DiskTable)
    assert sorted(disk.files["a"]) == ["age", "half", "small", "wide"]
    assert same(disk, mapped)
    one = folder_features(folder, {"half": StorePlace.DISK})
    assert isinstance(one, DiskTable)
    assert list(one.files["a"]) == ["half"]
    assert same(one, mapped)


def test_a_cache_changes_no_bit_and_saves_reads(folder: GraphFolder) -> None:
    disk, mapped = folder_features(folder, room_bytes=0), folder_features(folder)
    assert isinstance(disk, DiskTable)
    visits = {"a": torch.rand(ROWS, generator=torch.Generator().manual_seed(2), dtype=torch.float64)}
    plan = CachePlan.of(folder.schema, {"a": ("half", "wide")}, visits, 100_000)
    assert 0 < plan.ids["a"].numel() < ROWS
    cached = disk.cached(plan)
    assert same(cached, mapped)
    os.truncate(folder.path / "nodes/a/half.npy", 1000)  # cached rows need no file
    ids = plan.ids["a"]
    rows = cached.gather({"a": Rows(ids, ("half",))})["a"]["half"]
    assert rows.shape == (ids.numel(), 9)
    with pytest.raises(ValueError, match=r"half.npy: row .* cannot be read: the file ends before it"):
        disk.gather({"a": Rows(ids, ("half",))})
