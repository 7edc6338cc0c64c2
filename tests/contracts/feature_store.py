"""What every feature store promises; used as contracts/graph_store.py says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.features.store import FeatureStore, Rows
from khop.schema import EdgeType, NodeType

BUYS = ("user", "buys", "item")
Columns = Mapping[NodeType | EdgeType, Mapping[str, Tensor]]
Make = Callable[[Columns], FeatureStore]

SHOP: Columns = {
    "user": {"x": torch.arange(12.0).view(4, 3), "age": torch.tensor([31, 7, 55, 20], dtype=torch.int16)},
    "item": {
        "x": torch.arange(10.0).view(5, 2).bfloat16(),
        "sold": torch.tensor([True, False, True, True, False]),
    },
    BUYS: {"price": torch.tensor([5.0, 2.5, 8.0, 1.0, 9.5, 3.25], dtype=torch.float64)},
}


def int64(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def rows_are_in_the_order_of_the_ids(make: Make) -> None:
    store = make(SHOP)

    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        wanted = {}
        for type_, columns in SHOP.items():
            count = next(iter(columns.values())).shape[0]
            ids = data.draw(st.lists(st.integers(0, count - 1), max_size=9))
            names = data.draw(st.lists(st.sampled_from(sorted(columns)), unique=True))
            limits = data.draw(st.dictionaries(st.sampled_from(sorted(columns)), st.integers(0, 10)))
            wanted[type_] = Rows(int64(*ids), tuple(names), limits)
        gathered = store.gather(wanted)
        assert {type_: tuple(columns) for type_, columns in gathered.items()} == {
            type_: rows.columns for type_, rows in wanted.items()
        }
        for type_, rows in wanted.items():
            for name in rows.columns:
                expected = SHOP[type_][name][rows.ids[: rows.limits.get(name)]]
                assert gathered[type_][name].dtype == expected.dtype
                assert torch.equal(gathered[type_][name], expected)

    check()


def narrow_floats_come_as_float32_where_they_are_wanted_so(make: Make) -> None:
    """What is wide already, or no float, comes as it is stored."""
    wanted = Rows(int64(3, 0), ("x", "sold"), {"x": 1}, frozenset({"x", "sold"}))
    rows = make(SHOP).gather({"item": wanted, BUYS: Rows(int64(5), ("price",), {}, frozenset({"price"}))})
    assert (rows["item"]["x"].dtype, rows["item"]["x"].tolist()) == (torch.float32, [[6.0, 7.0]])
    assert rows["item"]["sold"].tolist() == [True, True]
    assert rows[BUYS]["price"].dtype == torch.float64


def no_ids_give_no_rows_of_the_right_kind(make: Make) -> None:
    rows = make(SHOP).gather({"item": Rows(int64(), ("x",))})["item"]["x"]
    assert (rows.shape, rows.dtype) == ((0, 2), torch.bfloat16)


def only_what_is_wanted_comes(make: Make) -> None:
    store = make(SHOP)
    assert store.gather({}) == {}
    assert store.gather({"user": Rows(int64(1), ())}) == {"user": {}}


def rows_are_the_callers_own(make: Make) -> None:
    store, wanted = make(SHOP), {"user": Rows(int64(2, 2), ("x",))}
    store.gather(wanted)["user"]["x"].zero_()
    assert store.gather(wanted)["user"]["x"].tolist() == [[6, 7, 8], [6, 7, 8]]


def ids_stay_as_they_were(make: Make) -> None:
    ids = int64(3, 0, 3)
    make(SHOP).gather({"user": Rows(ids, ("x", "age"))})
    assert ids.tolist() == [3, 0, 3]


def threads_may_share_it(make: Make) -> None:
    store = make(SHOP)
    wanted = [
        {"user": Rows(int64(n % 4, 3), ("x",)), BUYS: Rows(int64(n % 6), ("price",))} for n in range(60)
    ]
    alone = [store.gather(one)["user"]["x"].tolist() for one in wanted]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda one: store.gather(one)["user"]["x"].tolist(), wanted))
    assert together == alone


def what_is_not_there_is_named(make: Make) -> None:
    store = make(SHOP)
    with pytest.raises(ValueError, match=r"'shop'; there are .*'user'"):
        store.gather({"shop": Rows(int64(0), ("x",))})
    with pytest.raises(ValueError, match=r"no column 'height' of 'user'; there are \['age', .*'x'\]"):
        store.gather({"user": Rows(int64(0), ("x", "height"))})


def an_id_out_of_range_is_named(make: Make) -> None:
    store = make(SHOP)
    for id_ in (4, -1):
        with pytest.raises(ValueError, match=rf"column 'age' of 'user'.*{id_}\b.*1\b.*4\b"):
            store.gather({"user": Rows(int64(0, id_), ("age",))})


PROMISES: tuple[Callable[[Make], None], ...] = (
    rows_are_in_the_order_of_the_ids,
    narrow_floats_come_as_float32_where_they_are_wanted_so,
    no_ids_give_no_rows_of_the_right_kind,
    only_what_is_wanted_comes,
    rows_are_the_callers_own,
    ids_stay_as_they_were,
    threads_may_share_it,
    what_is_not_there_is_named,
    an_id_out_of_range_is_named,
)
