"""Arrays for rules are those of their columns, made once, and refused where rows are not sorted."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.graph.rule_arrays import RuleArrays, Sources, edge_times
from khop.kernels.csc import Csc
from khop.kernels.rising import outline
from khop.rules.rule import Need, NeedKind

TO = ("user", "buys", "item")
TIMES = st.lists(st.integers(-50, 50), min_size=6, max_size=6)
CSC = Csc(torch.tensor([0, 2, 2, 6]), torch.tensor([0, 1, 1, 0, 2, 2]), 3)


def arrays(own: list[int] | None, of_sources: list[int] | None) -> RuleArrays:
    columns: dict[object, dict[str, torch.Tensor]] = {TO: {}, "user": {}}
    if own is not None:
        columns[TO]["time"] = torch.tensor(own)
    if of_sources is not None:
        columns["user"]["time"] = torch.tensor(of_sources)
    return RuleArrays({TO: CSC}, columns)  # type: ignore[arg-type]


@given(own=st.none() | TIMES, of_sources=st.none() | st.lists(st.integers(-50, 50), min_size=3, max_size=3))
def test_times_are_the_later_ones_where_rows_ascend(
    own: list[int] | None, of_sources: list[int] | None
) -> None:
    made = arrays(own, of_sources)
    if own is None and of_sources is None:
        assert made.times(TO, "time") is None
        return
    later = [
        max(t for t in (own and own[edge], of_sources and of_sources[source]) if isinstance(t, int))
        for edge, source in enumerate(CSC.indices.tolist())
    ]
    known = edge_times(CSC, TO, made.columns, "time")
    assert known is not None
    assert known.tolist() == later
    if later[:2] == sorted(later[:2]) and later[2:] == sorted(later[2:]):
        times = made.times(TO, "time")
        assert times is not None
        assert times.values.tolist() == later
        assert torch.equal(times.outline, outline(CSC, times.values))
    else:
        with pytest.raises(ValueError, match="rows are not sorted by 'time': the edge at position"):
            made.times(TO, "time")


def test_source_ids_are_original_ids_and_are_made_once() -> None:
    originals = torch.tensor([70, 71, 72])
    made = RuleArrays({TO: CSC}, {}, {"user": originals})
    made.prepare(Need(NeedKind.SOURCE_IDS, TO))
    assert torch.equal(made.source_ids(TO), originals[CSC.indices])
    assert made.source_ids(TO) is made.source_ids(TO)
    assert made.weight_sums(TO, "price") is None
    assert made.column(TO, "price") is None


def test_a_bad_weight_is_named_with_its_column() -> None:
    weights = torch.tensor([1.0, 2.0, 1.0, float("nan"), 0.0, 1.0])
    made = RuleArrays({TO: CSC}, {TO: {"price": weights}})
    with pytest.raises(ValueError, match="column 'price': weight nan at position 3"):
        made.prepare(Need(NeedKind.WEIGHT_SUMS, TO, "price"))


def test_times_of_sources_in_other_parts_need_sorted_rows() -> None:
    elsewhere = Sources({"user": torch.arange(3)}, {"user": ("time",)})
    made = RuleArrays({TO: CSC}, {TO: {"time": torch.arange(6)}}, sources=elsewhere)
    with pytest.raises(ValueError, match="rows do not follow 'time', a column of its sources"):
        made.times(TO, "time")
    kept = torch.tensor([3, 5, 1, 1, 2, 9])
    sorted_rows = RuleArrays({TO: CSC}, {}, sorted_by={TO: "time"}, kept_times={TO: kept}, sources=elsewhere)
    times = sorted_rows.times(TO, "time")
    assert times is not None
    assert torch.equal(times.values, kept)
