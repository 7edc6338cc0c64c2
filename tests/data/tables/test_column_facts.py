from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.data.tables.files import MemoryTable
from khop.data.tables.guess import ColumnFacts, facts_of, found_in


def facts(array: pa.Array, piece: int = 100) -> ColumnFacts:
    found = ColumnFacts.of("c", array.type)
    for first in range(0, len(array), piece):
        found.add(array.slice(first, piece))
    return found


@given(st.lists(st.integers(0, 30)), st.integers(1, 5))
def test_keys_are_the_columns_without_two_equal_rows(values: list[int], piece: int) -> None:
    for array in (pa.array(values, pa.int64()), pa.array([str(v) for v in values], pa.string())):
        assert (facts(array, piece).keys is not None) == (len(set(values)) == len(values))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["1", " 2.5 ", "-3e4", ".5"], "number"),
        (["1", "x"], ""),
        (["2020-01-01", "2020-01-01T10:00:00+02:00"], "time"),
        (["2020-01-01T10:00Z", "2020-01-01 10:00:00.5+00"], "time zone"),
        (["2020-01-01", "soon"], ""),
        (["yes", "No"], "truth"),
        ([None, "7"], "number"),
    ],
)
def test_all_rows_of_text_decide(values: list[str | None], said: str) -> None:
    found = facts(pa.array(values, pa.string()), 1)
    names = {
        "number": found.is_number, "time": found.is_time, "zone": found.is_time and found.has_zone,
        "truth": found.is_truth,
    }  # fmt: skip
    assert [name for name, holds in names.items() if holds] == said.split()
    assert found.nulls == values.count(None)


def test_values_that_are_keys_are_counted() -> None:
    users = facts_of(MemoryTable(pa.table({"id": ["a", "b"], "age": [1, 2]}), "users"))
    table = MemoryTable(pa.table({"who": ["a", "z", None, "a"], "what": [1, 2, 3, 4]}), "events")
    assert sorted(found_in(table, ["who", "what"], {"user": users["id"]})) == [
        ("what", "user", 0),
        ("who", "user", 2),
    ]
