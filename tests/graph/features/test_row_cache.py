"""Rows that are kept are those of their owner, whatever is kept and however they are asked for.

Columns read from disk have the bits of the mapped ones, with a cache and without.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.graph.build import write_graph
from khop.graph.features.row_cache import DiskTable, RowCache
from khop.graph.features.store import CachePlan, FeatureStore, FeatureStoreBase, Gathered, Rows, Wanted
from khop.graph.features.table import FeatureTable
from khop.graph.folder import GraphFolder, open_folder
from khop.graph.inputs import quantize
from khop.graph.tables import EdgeTable, NodeTable
from khop.loading.device.device_placement import StorePlace
from khop.loading.device.placed_stores import folder_features
from khop.schema import ColumnSpec, Schema, Specs
from khop.testing.feature_store import BUYS, PROMISES, SHOP, Columns, Make, int64

COLUMNS = {"user": ("x", "age"), "item": ("x", "sold")}
SCHEMA = Schema(
    ("user", "item"),
    (),
    columns={
        t: {n: ColumnSpec(str(SHOP[t][n].dtype).removeprefix("torch."), SHOP[t][n].shape[1:]) for n in names}
        for t, names in COLUMNS.items()
    },
)


@dataclass
class Asked(FeatureStoreBase):
    """A table that knows how often it was asked for how many rows."""

    table: FeatureTable = field(default_factory=lambda: FeatureTable(SHOP))
    calls: list[dict[str, int]] = field(default_factory=list)

    @property
    def specs(self) -> Specs:
        return self.table.specs

    def gather(self, wanted: Wanted) -> Gathered:
        self.calls.append({str(t): rows.ids.numel() for t, rows in wanted.items()})
        return self.table.gather(wanted)


visits = st.fixed_dictionaries(
    {"user": st.lists(st.integers(0, 3), min_size=4, max_size=4).map(torch.tensor),
     "item": st.lists(st.integers(0, 3), min_size=5, max_size=5).map(torch.tensor)}
)  # fmt: skip


@given(visits, st.integers(0, 120), st.data())
def test_what_is_kept_is_what_the_owner_has(
    visits: dict[str, torch.Tensor], budget: int, data: st.DataObject
) -> None:
    plan = CachePlan.of(SCHEMA, COLUMNS, visits, budget)
    cache = RowCache.filled(plan, FeatureTable(SHOP), SCHEMA)
    assert cache.num_bytes <= budget
    for node_type, names in COLUMNS.items():
        if not cache.covers(node_type, names):
            assert plan.ids.get(node_type, int64()).numel() == 0
            continue
        ids = int64(*data.draw(st.lists(st.integers(0, visits[node_type].numel() - 1))))
        slots = cache.find(node_type, ids)
        assert torch.equal(slots >= 0, torch.isin(ids, plan.ids[node_type]))
        hit = slots >= 0
        kept = cache.rows.gather({node_type: Rows(slots[hit], names)})[node_type]
        for name in names:
            assert kept[name].dtype == SHOP[node_type][name].dtype
            assert torch.equal(kept[name], SHOP[node_type][name][ids[hit]])


def test_every_rank_fills_in_as_many_calls_as_its_budget_says() -> None:
    keeping = CachePlan({"user": int64(0, 2, 3)}, {"user": ("x",)}, {"user": 4}, calls=2)
    nothing = CachePlan({"user": int64()}, {"user": ("x",)}, {"user": 4}, calls=2)
    busy, idle = Asked(), Asked()
    cache = RowCache.filled(keeping, busy, SCHEMA)
    assert RowCache.filled(nothing, idle, SCHEMA).num_bytes == 0
    assert [sum(call.values()) for call in busy.calls] == [2, 1]
    assert [sum(call.values()) for call in idle.calls] == [0, 0]
    assert torch.equal(cache.rows.columns["user"]["x"], SHOP["user"]["x"][[0, 2, 3]])


def test_quantized_rows_are_kept_as_they_are_stored_and_widen_on_the_way_out() -> None:
    schema = Schema(("n",), (), columns={"n": {"x": ColumnSpec("int8", (2,), scales=(0.5, 2.0))}})
    table = FeatureTable.of(schema, {"n": {"x": torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=torch.int8)}})
    plan = CachePlan({"n": int64(0, 2)}, {"n": ("x",)}, {"n": 3}, calls=1)
    cache = RowCache.filled(plan, table, schema)
    slots = cache.find("n", int64(2, 0))
    rows = cache.rows.gather({"n": Rows(slots, ("x",), as_float32=frozenset({"x"}))})["n"]["x"]
    assert rows.tolist() == [[2.5, 12.0], [0.5, 4.0]]
    assert cache.rows.columns["n"]["x"].dtype == torch.int8


def test_columns_that_are_not_kept_are_not_covered() -> None:
    plan = CachePlan({"user": int64(1)}, {"user": ("x",)}, {"user": 4}, calls=1)
    cache = RowCache.filled(plan, FeatureTable(SHOP), SCHEMA)
    assert cache.covers("user", ("x",))
    assert not cache.covers("user", ("x", "age"))
    assert not cache.covers("item", ("x",))


def test_rows_lie_on_the_device_that_is_given_and_are_found_on_the_host() -> None:
    plan = CachePlan({"user": int64(1, 3)}, {"user": ("x", "age")}, {"user": 4}, calls=1)
    cache = RowCache.filled(plan, FeatureTable(SHOP), SCHEMA, device="meta")
    assert {column.device.type for column in cache.rows.columns["user"].values()} == {"meta"}
    assert cache.find("user", int64(3, 0)).tolist() == [1, -1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="where there is a GPU")
def test_rows_on_a_gpu_are_the_same() -> None:
    plan = CachePlan({"user": int64(1, 3)}, {"user": ("x", "age")}, {"user": 4}, calls=1)
    cache = RowCache.filled(plan, FeatureTable(SHOP), SCHEMA, device="cuda")
    rows = cache.rows.gather({"user": Rows(int64(1, 0).cuda(), ("x", "age"))})["user"]
    assert torch.equal(rows["x"].cpu(), SHOP["user"]["x"][[3, 1]])


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
