"""Rows of columns over parts on several servers.

Rows of other parts that are kept have their bits, take bounded memory, and are the ones used last.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import khop
from khop.distributed.exchange.row_wire import RowRequest
from khop.distributed.partitioned_features import MOST_TABLES, WAYS, PartitionedFeatures, RecentRows
from khop.graph.features.store import Rows
from khop.schema import ColumnSpec
from support.parts_in_process import part_services
from support.small_typed_folders import BUYS


@pytest.fixture
def features(typed_parts: Path) -> PartitionedFeatures:
    features: PartitionedFeatures = part_services(typed_parts)[1]._served.features  # type: ignore[attr-defined]
    return features


def test_rows_are_those_of_all_parts_in_one_process(features: PartitionedFeatures, typed_parts: Path) -> None:
    wanted = {
        "user": Rows(torch.tensor([299, 0, 5, 5, 150]), ("x", "age"), {"age": 2}, frozenset({"x"})),
        BUYS: Rows(torch.tensor([2999, 0, 1500]), ("time", "weight")),
        "item": Rows(torch.empty(0, dtype=torch.int64), ("price",)),
    }
    found, expected = features.gather(wanted), khop.open_graph(typed_parts).features.gather(wanted)
    assert list(found) == list(expected)
    for type_, columns in expected.items():
        assert list(found[type_]) == list(columns)
        for name, column in columns.items():
            assert found[type_][name].dtype == column.dtype
            assert torch.equal(found[type_][name], column)


def test_rows_of_the_own_part_ask_nobody(features: PartitionedFeatures) -> None:
    own = features.local_rows("user")
    assert 0 < len(own) < 300
    features.gather({"user": Rows(torch.tensor(own), ("x",))})
    assert not any(owner.asked for owner in features.owners.exchange._owners.values())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("type_", "rows", "words"),
    [
        ("shop", Rows(torch.tensor([0]), ("x",)), "no columns of type 'shop'"),
        ("user", Rows(torch.tensor([0]), ("y",)), "no column 'y' of 'user'"),
        ("user", Rows(torch.tensor([300]), ("x",)), r"row id 300 at position 0: must be in \[0, 300\)"),
    ],
)
def test_a_row_that_there_is_not_is_named(
    features: PartitionedFeatures, type_: str, rows: Rows, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        features.gather({type_: rows})


def test_damaged_requests_for_rows_are_refused(features: PartitionedFeatures) -> None:
    with pytest.raises(ValueError, match="type 9 of"):
        features.question.asked(torch.tensor([9, 1, 1, 1, 0, 0]).view(torch.uint8))


SPECS = {"user": {"x": ColumnSpec("float32", (2,)), "age": ColumnSpec("int64", ())}}
ROW = 8 + 8 + 16  # bytes of x, age, id and time
ids_of_steps = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=30, unique=True), max_size=12)


def cache_of(rows: int) -> RecentRows:
    return RecentRows(rows * ROW, SPECS, {"user": 100})


def request(ids: Sequence[int], first: int = 0) -> RowRequest:
    return RowRequest("user", ("x", "age"), torch.tensor(sorted(ids)) - first)


def rows_of(ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"x": torch.stack([ids, -ids], 1).float(), "age": ids * 3}


def used(cache: RecentRows, ids: Sequence[int], first: int = 0) -> int:
    """Ask for rows, fetch the missing ones and keep them; return how many were missing."""
    asked = request(ids, first)
    kept = cache.kept(asked, first)
    fetched = rows_of(kept.missing.ids + first)
    found = kept.joined(fetched)
    for name, expected in rows_of(asked.ids + first).items():
        assert torch.equal(found[name], expected)
    cache.keep(kept.missing, first, fetched)
    return kept.missing.ids.numel()


@given(ids_of_steps, st.integers(0, 130), st.integers(0, 40))
def test_rows_are_those_that_were_fetched_and_take_bounded_memory(
    steps: list[list[int]], rows: int, first: int
) -> None:
    cache, missing = cache_of(rows), 0
    for ids in steps:
        missing += used(cache, ids, first)
    counts = cache.counters()
    assert counts["cache bytes"] <= rows * ROW
    if rows >= WAYS and steps:
        assert counts["cached rows"] + counts["fetched rows"] == sum(map(len, steps))
        assert counts["fetched rows"] == missing


def test_all_rows_are_kept_where_there_is_room() -> None:
    cache = cache_of(104)  # 13 times 8 places
    for _ in range(WAYS):  # rows of one place each step
        used(cache, range(100))
    assert used(cache, range(100)) == 0
    assert cache.counters()["cache bytes"] == 104 * ROW


def test_the_rows_that_were_used_last_stay() -> None:
    cache = cache_of(WAYS)  # one set of places
    for id_ in range(WAYS):
        assert used(cache, [id_]) == 1
    assert used(cache, [0]) == 0
    assert used(cache, [50]) == 1  # takes the place of row 1
    assert used(cache, [0, *range(2, WAYS), 50]) == 0
    assert used(cache, [1]) == 1


def test_tables_share_the_memory_by_size() -> None:
    cache = cache_of(50)
    used(cache, range(10))
    for number in range(2 * MOST_TABLES):
        cache.kept(RowRequest("user", ("age",) * (number + 1), torch.tensor([1])), 0)
        assert cache.counters()["cache bytes"] <= 50 * ROW
    assert used(cache, range(10)) == 10  # began anew


def test_without_memory_nothing_is_kept() -> None:
    cache = cache_of(0)
    assert [used(cache, [1, 2]), used(cache, [1, 2])] == [2, 2]
    assert cache.counters() == {"cached rows": 0, "fetched rows": 0, "cache bytes": 0}


@pytest.mark.core(1)
@pytest.mark.parametrize("cache_bytes", [0, 2000, 1 << 20])
def test_gathers_have_the_bits_of_a_local_process_and_ask_for_missing_rows(
    typed_parts: Path, cache_bytes: int
) -> None:
    service = part_services(typed_parts, cache_bytes)[1]
    features: PartitionedFeatures = service._served.features  # type: ignore[attr-defined]
    local, generator = khop.open_graph(typed_parts).features, torch.Generator().manual_seed(4)

    def step() -> None:
        users = torch.randint(300, (40,), generator=generator)
        wanted = {
            "user": Rows(users, ("x", "age"), {"age": 10}, frozenset({"x"})),
            BUYS: Rows(torch.randint(1000, 1500, (50,), generator=generator), ("time",)),
        }
        found, expected = features.gather(wanted), local.gather(wanted)
        for type_, columns in expected.items():
            for name, column in columns.items():
                assert torch.equal(found[type_][name], column)

    def requests() -> int:
        return sum(len(owner.asked) for owner in features.owners.exchange._owners.values())  # type: ignore[attr-defined]

    for _ in range(60):
        step()
    after = requests()
    counts = service.counters()
    assert counts["cache bytes"] <= cache_bytes
    assert (counts["cached rows"] > 0) == (cache_bytes > 0)
    if cache_bytes == 1 << 20:  # all rows have been there
        assert counts["cached rows"] > counts["fetched rows"]
        for _ in range(10):
            step()
        assert requests() - after < 10 * 2
