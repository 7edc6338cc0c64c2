"""Contract suite for feature stores.

A test takes a function that makes the tested store from columns: a mapping from type to tensors by name.

Example:
    >>> from khop.graph.features.table import FeatureTable
    >>> from khop.testing import feature_store
    >>> for promise in feature_store.PROMISES:
    ...     promise(FeatureTable)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from hypothesis import strategies as st
from torch import Tensor

from khop.graph.features.store import CachePlan, FeatureStore, Rows, Wanted
from khop.schema import EdgeType, NodeType, Schema
from khop.testing.promises import examples, expect, expect_equal, expect_refusal, promise, unless_unsupported

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
    """Return an int64 tensor."""
    return torch.tensor(values, dtype=torch.int64)


def expect_rows(what: str, found: Tensor, expected: Tensor) -> None:
    """Raise AssertionError unless rows are equal, with the dtype and shape."""
    expect_equal(f"dtype of {what}", found.dtype, expected.dtype)
    expect_equal(f"shape of {what}", tuple(found.shape), tuple(expected.shape))
    expect_equal(f"rows of {what}", found.tolist(), expected.tolist())


def expect_all_rows(what: str, store: FeatureStore, columns: Columns = SHOP) -> None:
    """Gather all rows in descending order, and compare."""
    counts = {t: next(iter(of_type.values())).shape[0] for t, of_type in columns.items()}
    wanted = {t: Rows(torch.arange(count - 1, -1, -1), tuple(columns[t])) for t, count in counts.items()}
    gathered = store.gather(wanted)
    for type_, of_type in columns.items():
        for name, column in of_type.items():
            expect_rows(f"{what}, column {name!r} of {type_!r}", gathered[type_][name], column.flip(0))


@promise
def rows_are_in_the_order_of_the_ids(make: Make) -> None:
    """Gather rows in the order of the ids, for each requested column up to its limit."""
    store = make(SHOP)

    @examples(data=st.data())
    def check(data: st.DataObject) -> None:
        wanted = {}
        for type_, columns in SHOP.items():
            count = next(iter(columns.values())).shape[0]
            ids = data.draw(st.lists(st.integers(0, count - 1), max_size=9))
            names = data.draw(st.lists(st.sampled_from(sorted(columns)), unique=True))
            limits = data.draw(st.dictionaries(st.sampled_from(sorted(columns)), st.integers(0, 10)))
            wanted[type_] = Rows(int64(*ids), tuple(names), limits)
        gathered = store.gather(wanted)
        columns_of = {type_: tuple(columns) for type_, columns in gathered.items()}
        expect_equal("gathered columns", columns_of, {type_: rows.columns for type_, rows in wanted.items()})
        for type_, rows in wanted.items():
            for name in rows.columns:
                expected = SHOP[type_][name][rows.ids[: rows.limits.get(name)]]
                expect_rows(f"column {name!r} of {type_!r}", gathered[type_][name], expected)

    check()


@promise
def narrow_floats_are_converted_on_request(make: Make) -> None:
    """Convert narrow floats in `as_float32` to float32, but no other columns."""
    wanted = Rows(int64(3, 0), ("x", "sold"), {"x": 1}, frozenset({"x", "sold"}))
    rows = make(SHOP).gather({"item": wanted, BUYS: Rows(int64(5), ("price",), {}, frozenset({"price"}))})
    expect_rows("column 'x' of 'item'", rows["item"]["x"], torch.tensor([[6.0, 7.0]]))
    expect_rows("column 'sold' of 'item'", rows["item"]["sold"], torch.tensor([True, True]))
    expect_rows(f"column 'price' of {BUYS}", rows[BUYS]["price"], SHOP[BUYS]["price"][5:])


@promise
def no_ids_give_no_rows(make: Make) -> None:
    """Return an empty tensor with the column's dtype and shape for an empty list of ids."""
    rows = make(SHOP).gather({"item": Rows(int64(), ("x",))})["item"]["x"]
    expect_rows("column 'x' of 'item' for no ids", rows, torch.empty((0, 2), dtype=torch.bfloat16))


@promise
def only_requested_columns_are_gathered(make: Make) -> None:
    """Return only requested types and columns."""
    store = make(SHOP)
    expect_equal("gather of no type", store.gather({}), {})
    expect_equal("gather of no column", store.gather({"user": Rows(int64(1), ())}), {"user": {}})


@promise
def rows_belong_to_the_caller(make: Make) -> None:
    """Return rows that the caller may overwrite."""
    store = make(SHOP)
    wanted: Wanted = {"user": Rows(int64(2, 2), ("x",))}
    store.gather(wanted)["user"]["x"].zero_()
    found = store.gather(wanted)["user"]["x"]
    expect_rows("column 'x' after the caller overwrote earlier rows", found, SHOP["user"]["x"][[2, 2]])


@promise
def ids_do_not_change(make: Make) -> None:
    """Leave the ids unchanged."""
    ids = int64(3, 0, 3)
    make(SHOP).gather({"user": Rows(ids, ("x", "age"))})
    expect_equal("ids after the gather", ids.tolist(), [3, 0, 3])


@promise
def threads_share_it(make: Make) -> None:
    """Gather the same rows when several threads call it concurrently."""
    store = make(SHOP)
    wanted: list[Wanted] = [
        {"user": Rows(int64(n % 4, 3), ("x",)), BUYS: Rows(int64(n % 6), ("price",))} for n in range(60)
    ]

    def gathered(one: Wanted) -> list[list[object]]:
        rows = store.gather(one)
        return [rows["user"]["x"].tolist(), rows[BUYS]["price"].tolist()]

    alone = [gathered(one) for one in wanted]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(gathered, wanted))
    expect(together == alone, "four threads gather other rows than one")


@promise
def missing_columns_are_named(make: Make) -> None:
    """Raise ValueError that names a missing type or column, and the existing ones."""
    store = make(SHOP)
    shop: Wanted = {"shop": Rows(int64(0), ("x",))}
    height: Wanted = {"user": Rows(int64(0), ("x", "height"))}
    expect_refusal(lambda: store.gather(shop), "type 'shop'", "'shop'", "'user'")
    expect_refusal(lambda: store.gather(height), "column 'height'", "'height'", "'user'", "'age'", "'x'")


@promise
def an_id_out_of_range_is_named(make: Make) -> None:
    """Raise ValueError that names an id out of range, its position, its column and the number of rows."""
    store = make(SHOP)
    for id_ in (4, -1):
        wanted = {"user": Rows(int64(0, id_), ("age",))}
        expect_refusal(
            lambda wanted=wanted: store.gather(wanted),  # type: ignore[misc]
            f"row {id_} of 4",
            "'age'",
            "'user'",
            str(id_),
            "1",
            "4",
        )


@promise
def specs_state_dtype_and_shape(make: Make) -> None:
    """Return the dtype and shape of every column from `specs`."""
    specs = make(SHOP).specs
    expected = {
        t: {name: (str(c.dtype).removeprefix("torch."), tuple(c.shape[1:])) for name, c in of_type.items()}
        for t, of_type in SHOP.items()
    }
    found = {
        t: {name: (s.dtype, tuple(s.shape)) for name, s in specs.get(t, {}).items() if name in of_type}
        for t, of_type in SHOP.items()
    }
    expect_equal("dtypes and shapes in specs", found, expected)


@promise
def rows_are_on_the_output_device(make: Make) -> None:
    """Return rows on `output_device`."""
    store = make(SHOP)
    gathered = store.gather({t: Rows(int64(1), tuple(columns)) for t, columns in SHOP.items()})
    for type_, columns in gathered.items():
        for name, rows in columns.items():
            device = store.output_device(type_, name)
            expect_equal(f"device of column {name!r} of {type_!r}", rows.device, device)


@promise
def local_rows_are_a_range_of_the_rows(make: Make) -> None:
    """Return an ascending range from `local_rows`, with all rows unless the store is collective."""
    store = make(SHOP)
    expect_equal("type of is_collective", type(store.is_collective), bool)
    for type_, columns in SHOP.items():
        count, rows = next(iter(columns.values())).shape[0], store.local_rows(type_)
        is_range = isinstance(rows, range) and rows.step == 1 and rows.start >= 0
        expect(is_range, f"local_rows of {type_!r}: {rows}, must be an ascending range")
        has_all = rows.start == 0 and rows.stop >= count
        expect(store.is_collective or has_all, f"local_rows of {type_!r}: {rows}, must be all {count} rows")
        resident = store.resident_rows(type_)
        is_within = not resident or (rows.start <= resident.start and resident.stop <= rows.stop)
        expect(is_within, f"resident_rows of {type_!r}: {resident}, must be among local_rows, {rows}")


@promise
def numbers_of_threads_change_no_row(make: Make) -> None:
    """Return a store with the same rows from `with_threads`."""
    store = make(SHOP)
    for threads in (1, 3):
        expect_all_rows(f"with_threads({threads})", store.with_threads(threads))


@promise
def a_cache_changes_no_row(make: Make) -> None:
    """Return a store with the same rows from `cached`, or raise Unsupported."""
    store = make(SHOP)
    columns = {"user": ("x", "age"), "item": ("x",)}
    visits = {"user": torch.tensor([2.0, 0.0, 1.0, 3.0]), "item": torch.tensor([1.0, 1.0, 0.0, 0.0, 5.0])}
    schema = Schema(("user", "item"), (BUYS,), columns=store.specs)
    plan = CachePlan.of(schema, columns, visits, 1 << 16)
    cached = unless_unsupported(lambda: store.cached(plan))
    if cached is not None:
        expect_all_rows("cached(plan)", cached)
        expect_all_rows("cached(plan), second gather", cached)


@promise
def whole_columns_are_those_of_the_store(make: Make) -> None:
    """Return all columns from `whole_columns`, or raise Unsupported."""
    store = make(SHOP)
    columns = unless_unsupported(store.whole_columns)
    for type_, of_type in SHOP.items() if columns is not None else ():
        assert columns is not None
        for name, column in of_type.items():
            expect_rows(f"whole column {name!r} of {type_!r}", columns[type_][name], column)


@promise
def added_columns_join_those_of_the_store(make: Make) -> None:
    """Return a store with the added columns from `with_columns`, or raise Unsupported if there are any."""
    store, sells = make(SHOP), ("item", "sold-by", "user")
    expect_all_rows("with_columns of nothing", store.with_columns({}))
    added: Columns = {sells: {"w": torch.arange(3)}}
    joined = unless_unsupported(lambda: store.with_columns(added))
    if joined is not None:
        expect_all_rows("with_columns", joined, {**SHOP, **added})


@promise
def chosen_rows_are_numbered_from_zero(make: Make) -> None:
    """Return a store from `choosing` with the chosen rows, numbered from 0, and all rows of other types."""
    at = int64(1, 3)
    chosen = make(SHOP).choosing({"user": at})
    some: Columns = {**SHOP, "user": {name: column[at] for name, column in SHOP["user"].items()}}
    expect_all_rows("choosing", chosen, some)
    expect_refusal(lambda: chosen.gather({"user": Rows(int64(2), ("x",))}), "row 2 of 2 chosen rows", "2")


PROMISES: tuple[Callable[[Make], None], ...] = (
    rows_are_in_the_order_of_the_ids,
    narrow_floats_are_converted_on_request,
    no_ids_give_no_rows,
    only_requested_columns_are_gathered,
    rows_belong_to_the_caller,
    ids_do_not_change,
    threads_share_it,
    missing_columns_are_named,
    an_id_out_of_range_is_named,
    specs_state_dtype_and_shape,
    rows_are_on_the_output_device,
    local_rows_are_a_range_of_the_rows,
    numbers_of_threads_change_no_row,
    a_cache_changes_no_row,
    whole_columns_are_those_of_the_store,
    added_columns_join_those_of_the_store,
    chosen_rows_are_numbered_from_zero,
)
