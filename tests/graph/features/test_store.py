"""Rows of some types are known by other ids than in the store that has them.

The rows that a cache keeps: the most visited, as many as the budget has room for, the same every time.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.graph.features.store import CachePlan, RenumberedRows, Rows
from khop.graph.features.table import FeatureTable
from khop.kernels.owners import IdSlots
from khop.schema import ColumnSpec, Schema
from khop.testing.feature_store import BUYS, PROMISES, Columns, Make


def make(columns: Columns) -> RenumberedRows:
    """Of every type the rows stand the other way round below, after one that is not wanted."""
    counts = {t: len(column) for t, of_type in columns.items() for column in of_type.values()}
    below = {
        t: {name: torch.cat([column[:1], column.flip(0)]) for name, column in of_type.items()}
        for t, of_type in columns.items()
    }
    return RenumberedRows(FeatureTable(below), {t: torch.arange(count, 0, -1) for t, count in counts.items()})


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps(promise: Callable[[Make], None]) -> None:
    promise(make)


def test_where_nothing_is_wanted_the_store_below_is_asked_all_the_same() -> None:
    class CallContext(FeatureTable):
        is_collective = True

    store = RenumberedRows(CallContext({BUYS: {}}), {BUYS: torch.arange(3)})
    assert store.is_collective
    assert store.gather({BUYS: Rows(torch.arange(0), ())}) == {BUYS: {}}
    assert not RenumberedRows(FeatureTable({}), {}).is_collective


SCHEMA = Schema(
    ("user", "item", "tag"),
    (),
    columns={
        "user": {"x": ColumnSpec("float32", (5,)), "age": ColumnSpec("int16", ())},
        "item": {"x": ColumnSpec("bfloat16", (3,)), "q": ColumnSpec("int8", (2, 2), scales=(0.1,) * 4)},
    },
)
COLUMNS = {"user": ("x", "age"), "item": ("x", "q")}
ROW_BYTES = {"user": 22, "item": 10}
Visits = dict[str, torch.Tensor]

visits_of_all = st.fixed_dictionaries(
    {
        node_type: st.lists(st.integers(0, 4), min_size=count, max_size=count).map(torch.tensor)
        for node_type, count in (("user", 40), ("item", 200))
    }
)
LOOKUPS = IdSlots.bytes_for(40) + IdSlots.bytes_for(200)


def planned(visits: Visits, budget: int) -> CachePlan:
    return CachePlan.of(SCHEMA, COLUMNS, visits, budget)


def kept_bytes(plan: CachePlan) -> int:
    return sum(ids.numel() * ROW_BYTES[t] for t, ids in plan.ids.items())


@given(visits_of_all, st.integers(0, 4000))
def test_the_budget_is_kept_to_the_byte_and_used(visits: Visits, budget: int) -> None:
    plan = planned(visits, budget)
    left = budget - LOOKUPS - kept_bytes(plan)
    assert left >= 0 or kept_bytes(plan) == 0
    wanted = sum(int((of_type > 0).sum()) for of_type in visits.values())
    kept = sum(ids.numel() for ids in plan.ids.values())
    assert kept == wanted or left < max(ROW_BYTES.values())


@given(visits_of_all, st.integers(0, 4000))
def test_no_row_is_left_out_for_one_that_batches_need_less(visits: Visits, budget: int) -> None:
    plan = planned(visits, budget)
    masks = {t: torch.zeros(of.numel(), dtype=torch.bool) for t, of in visits.items()}
    for node_type, ids in plan.ids.items():
        assert (ids.diff() > 0).all()
        masks[node_type][ids] = True
    kept = torch.cat([of_type[masks[t]] for t, of_type in visits.items()])
    others = torch.cat([of_type[~masks[t]] for t, of_type in visits.items()])
    if kept.numel():
        assert int(kept.min()) >= max([1, *others.tolist()])


@given(visits_of_all, st.integers(0, 4000))
def test_a_larger_budget_keeps_what_a_smaller_one_does(visits: Visits, budget: int) -> None:
    smaller, larger = planned(visits, budget), planned(visits, budget + 500)
    for node_type, ids in smaller.ids.items():
        assert bool(torch.isin(ids, larger.ids[node_type]).all())


def test_of_equally_visited_rows_the_first_are_kept() -> None:
    visits = {"user": torch.ones(40), "item": torch.ones(200)}
    plan = planned(visits, LOOKUPS + 40 * 22 + 10 * 3 + 9)
    assert plan.ids["user"].tolist() == list(range(40))
    assert plan.ids["item"].tolist() == [0, 1, 2]
    again = planned(visits, LOOKUPS + 40 * 22 + 10 * 3 + 9)
    assert all(torch.equal(ids, again.ids[t]) for t, ids in plan.ids.items())


def test_types_without_columns_cost_nothing() -> None:
    plan = CachePlan.of(
        SCHEMA, {"item": ("x",), "tag": ()}, {"item": torch.ones(8)}, IdSlots.bytes_for(8) + 6
    )
    assert {t: ids.tolist() for t, ids in plan.ids.items()} == {"item": [0]}


def test_no_columns_at_all_keep_nothing() -> None:
    assert CachePlan.of(SCHEMA, {}, {}, 1 << 30).ids == {}


def test_filling_takes_as_many_calls_on_a_rank_that_keeps_nothing() -> None:
    busy = planned({"user": torch.ones(40), "item": torch.ones(200)}, 1 << 28)
    idle = planned({"user": torch.zeros(40), "item": torch.zeros(200)}, 1 << 28)
    assert busy.calls == idle.calls == 4


def test_a_negative_budget_is_named() -> None:
    with pytest.raises(ValueError, match="cache of -1 bytes"):
        planned({"user": torch.ones(40), "item": torch.ones(200)}, -1)
