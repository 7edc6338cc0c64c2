"""Rows that are kept are those of their owner, whatever is kept and however they are asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.features.cache_plan import CachePlan
from khop.features.row_cache import RowCache
from khop.features.store import FeatureStoreBase, Gathered, Rows, Wanted
from khop.features.table import FeatureTable
from khop.schema import ColumnSpec, Schema, Specs
from khop.testing.feature_store import SHOP, int64

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
