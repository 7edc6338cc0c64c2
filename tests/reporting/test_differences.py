"""Values that differ between runs."""

from __future__ import annotations

from khop.reporting.differences import differences


def test_differences_are_of_values_and_of_missing_ones() -> None:
    one, other = {"a": 1, "b": {"c": [1, 2], "d": 3}}, {"a": 1, "b": {"c": [1], "d": 3, "e": 4}}
    assert differences([one, other]) == {"b.c": ([1, 2], [1]), "b.e": (None, 4)}
    assert differences([one, one]) == {}
