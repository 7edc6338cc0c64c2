"""Rows of columns are taken when they are asked for, and once.

Pieces of edges are all edges, in order, each with its row.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import khop._core as _core
from khop.kernels.csc import (
    ChosenRows,
    Csc,
    build_csc,
    build_csc_reference,
    check_ids,
    check_offsets,
    edge_spans,
    first_outside_reference,
    first_wrong_offset_reference,
    group_by_destination,
    index_dtype,
)
from khop.kernels.draw_request import time_ranges, time_ranges_reference
from khop.testing.reference import allowed_range
from support.draws import rising


def test_counts_rows_and_edges() -> None:
    csc = Csc(torch.tensor([0, 2, 2, 3]), torch.tensor([5, 1, 0], dtype=torch.int32))
    assert (csc.num_rows, csc.num_edges) == (3, 3)


@pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [
        (torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0]), "indptr is int32"),
        (torch.tensor([], dtype=torch.int64), torch.tensor([0]), r"indptr is int64 \(0,\)"),
        (torch.tensor([[0, 1]]), torch.tensor([0]), r"indptr is int64 \(1, 2\)"),
        (torch.tensor([0, 1]), torch.tensor([0.0]), "indices is float32"),
        (torch.tensor([0, 1]), torch.tensor([[0]]), r"indices is int64 \(1, 1\)"),
        (
            torch.tensor([0, 1]),
            torch.zeros(1, dtype=torch.int64, device="meta"),
            "indptr is on cpu, indices on meta",
        ),
        (torch.tensor([0, 1]), torch.arange(4)[::2], "make it contiguous"),
        (torch.arange(4)[::2], torch.tensor([0]), "make it contiguous"),
    ],
)
def test_arrays_that_are_no_csc_are_refused(
    indptr: torch.Tensor, indices: torch.Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Csc(indptr, indices)


EDGE_COUNTS = st.sampled_from([0, 1, 7, 100, 3000])


@st.composite
def edge_lists(draw: st.DrawFn) -> tuple[Tensor, Tensor, int, int]:
    num_sources, num_destinations = (
        draw(st.integers(1, 50)),
        draw(st.sampled_from([1, 2, 40, 2047, 2048, 9999])),
    )
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    count, dtype = draw(EDGE_COUNTS), draw(st.sampled_from([torch.int32, torch.int64]))
    sources = torch.randint(num_sources, (count,), generator=random, dtype=dtype)
    return (
        sources,
        torch.randint(num_destinations, (count,), generator=random, dtype=dtype),
        num_sources,
        num_destinations,
    )


@given(edge_lists(), st.integers(1, 4))
def test_equals_a_stable_sort(edges: tuple[Tensor, Tensor, int, int], threads: int) -> None:
    csc, order = build_csc(*edges, threads=threads)
    expected, expected_order = build_csc_reference(*edges)
    assert torch.equal(csc.indptr, expected.indptr)
    assert torch.equal(csc.indices, expected.indices)
    assert csc.indices.dtype == expected.indices.dtype == torch.int32
    assert torch.equal(order, expected_order)
    alone = group_by_destination(*edges, threads=threads)
    assert torch.equal(alone.indptr, expected.indptr)
    assert torch.equal(alone.indices, expected.indices)


def test_edges_beyond_a_million_are_sorted_in_two_passes() -> None:
    random = torch.Generator().manual_seed(1)
    destinations = torch.randint(5000, (1_200_000,), generator=random, dtype=torch.int32)
    destinations[torch.rand(1_200_000, generator=random) < 0.4] = 2600
    sources = torch.randint(1000, (1_200_000,), generator=random, dtype=torch.int32)
    expected, expected_order = build_csc_reference(sources, destinations, 1000, 5000)
    csc, order = build_csc(sources, destinations, 1000, 5000, threads=2)
    assert torch.equal(csc.indptr, expected.indptr)
    assert torch.equal(csc.indices, expected.indices)
    assert torch.equal(order, expected_order)


@pytest.mark.core(1)
@pytest.mark.parametrize("skew", [1.0, 8.0])
def test_many_edges_are_the_same_on_any_number_of_threads(skew: float) -> None:
    random = torch.Generator().manual_seed(1)
    destinations = (torch.rand(600_000, generator=random).pow(skew) * 300_000).long()
    sources = torch.randint(1000, (600_000,), generator=random)
    expected, expected_order = build_csc_reference(sources, destinations, 1000, 300_000)
    for threads in (1, 2, 4):
        csc, order = build_csc(sources, destinations, 1000, 300_000, threads=threads)
        assert torch.equal(csc.indptr, expected.indptr)
        assert torch.equal(csc.indices, expected.indices)
        assert torch.equal(order, expected_order)


def test_no_edges_and_no_nodes() -> None:
    none = torch.empty(0, dtype=torch.int64)
    csc, order = build_csc(none, none, 0, 0)
    assert csc.indptr.tolist() == [0]
    assert csc.indices.numel() == order.numel() == 0


@pytest.mark.parametrize(("num_sources", "dtype"), [(2**31, torch.int32), (2**31 + 1, torch.int64)])
def test_ids_are_32_bit_exactly_where_they_fit(num_sources: int, dtype: torch.dtype) -> None:
    last = num_sources - 1
    csc, _ = build_csc(torch.tensor([5, last]), torch.tensor([1, 0]), num_sources, 2)
    assert index_dtype(num_sources) == csc.indices.dtype == dtype
    assert csc.indices.tolist() == [last, 5]


def test_int32_edges_into_a_graph_that_needs_64_bits() -> None:
    edges = torch.tensor([3, 1], dtype=torch.int32), torch.tensor([1, 0], dtype=torch.int32)
    csc, order = build_csc(*edges, 2**40, 2)
    assert csc.indices.dtype == torch.int64
    assert csc.indices.tolist() == [1, 3]
    assert order.tolist() == [1, 0]


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("bad", [-1, 5])
@pytest.mark.parametrize("end", ["source", "destination"])
def test_the_first_id_out_of_range_is_named(end: str, bad: int, threads: int) -> None:
    ids = {
        "source": torch.zeros(400_000, dtype=torch.int64),
        "destination": torch.zeros(400_000, dtype=torch.int64),
    }
    ids[end][[250_000, 399_999]] = bad
    with pytest.raises(ValueError, match=rf"{end} id {bad} at position 250000: must be in \[0, 5\)"):
        build_csc(ids["source"], ids["destination"], 5, 5, threads=threads)


def test_inputs_that_are_not_contiguous() -> None:
    edge_index = torch.tensor([[0, 1], [2, 0], [1, 1]])
    csc, order = build_csc(edge_index[:, 0], edge_index[:, 1], 3, 2)
    assert csc.indptr.tolist() == [0, 1, 3]
    assert csc.indices.tolist() == [2, 0, 1]
    assert order.tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("sources", "destinations", "message"),
    [
        (torch.zeros(2), torch.zeros(2), "sources are torch.float32"),
        (
            torch.zeros(1, 2, dtype=torch.int64),
            torch.zeros(2, dtype=torch.int64),
            r"sources are torch.int64 \(1, 2\)",
        ),
        (torch.zeros(2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), "2 sources, 3 destinations"),
        (
            torch.zeros(2, dtype=torch.int64),
            torch.zeros(2, dtype=torch.int32),
            "must have the same dtype and device",
        ),
    ],
)
def test_what_is_no_edge_list_is_said(sources: Tensor, destinations: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_csc(sources, destinations, 5, 5)


@pytest.mark.parametrize(
    ("counts", "message"), [((-1, 5), "num_sources -1"), ((5, -2), "num_destinations -2")]
)
def test_counts_are_not_negative(counts: tuple[int, int], message: str) -> None:
    none = torch.empty(0, dtype=torch.int64)
    with pytest.raises(ValueError, match=message):
        build_csc(none, none, *counts)


@given(
    ids=st.lists(st.integers(-2, 6), max_size=12),
    limit=st.integers(0, 6),
    dtype=st.sampled_from([torch.int32, torch.int64]),
)
def test_the_first_id_outside_is_that_of_the_reference(
    ids: list[int], limit: int, dtype: torch.dtype
) -> None:
    given_ids = torch.tensor(ids, dtype=dtype)
    expected = next((position for position, id_ in enumerate(ids) if not 0 <= id_ < limit), -1)
    assert _core.first_outside(given_ids, limit, 2) == first_outside_reference(given_ids, limit) == expected


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("limit", [(1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 33, (1 << 63) - 1])
def test_negative_ids_are_outside_of_any_number_of_nodes(limit: int, dtype: torch.dtype) -> None:
    ids = torch.tensor([0, (1 << 31) - 2, -1, -(1 << 31)], dtype=dtype)
    for threads in (1, 2):
        assert _core.first_outside(ids, limit, threads) == 2
        assert _core.first_outside(ids[:2], limit, threads) == -1


@given(
    steps=st.lists(st.integers(-1, 3), max_size=8),
    start=st.sampled_from([0, 0, 0, 1]),
    more=st.integers(0, 1),
)
def test_the_first_wrong_offset_is_that_of_the_reference(steps: list[int], start: int, more: int) -> None:
    indptr = torch.tensor([start, *steps]).cumsum(0)
    edges = int(indptr[-1]) + more
    assert _core.first_wrong_offset(indptr, edges) == first_wrong_offset_reference(indptr, edges)


def test_ids_in_range_pass_and_others_are_named() -> None:
    check_ids(torch.tensor([0, 4, 2])[::2], 3, "seed")
    with pytest.raises(ValueError, match=r"seed id 4 at position 1: must be in \[0, 3\)"):
        check_ids(torch.tensor([0, 4, 2]), 3, "seed")


def test_offsets_of_rows_pass_and_others_are_named() -> None:
    check_offsets(torch.tensor([[0, 9], [2, 9]])[:, 0], 2)
    with pytest.raises(ValueError, match="indptr has 1 at position 2: it must begin with 0, never fall"):
        check_offsets(torch.tensor([0, 2, 1]), 1)


def test_a_column_is_read_when_it_is_asked_for_and_once() -> None:
    read: list[str] = []

    class Columns(dict[str, torch.Tensor]):
        def __getitem__(self, name: str) -> torch.Tensor:
            read.append(name)
            return super().__getitem__(name)

    chosen = ChosenRows(Columns(time=torch.tensor([5, 6, 7]), x=torch.ones(3, 2)), torch.tensor([0, 2]))
    assert (len(chosen), list(chosen), "time" in chosen, "price" in chosen) == (2, ["time", "x"], True, False)
    assert read == []
    assert chosen["time"].tolist() == chosen["time"].tolist() == [5, 7]
    assert chosen["x"].shape == (2, 2)
    assert read == ["time", "x"]


@given(degrees=st.lists(st.integers(0, 9), max_size=30), most=st.integers(1, 12))
def test_spans_have_all_edges_once_with_their_rows(degrees: list[int], most: int) -> None:
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    rows = torch.repeat_interleave(torch.arange(len(degrees)), torch.tensor(degrees, dtype=torch.int64))
    found, end = [], 0
    for span in edge_spans(indptr, most):
        assert (span.first, span.end - span.first <= most) == (end, True)
        of_span = span.per_edge(torch.arange(len(degrees))[span.rows])
        assert torch.equal(of_span, rows[span.first : span.end])
        found.append(of_span)
        end = span.end
    assert end == sum(degrees)
    assert torch.equal(torch.cat([torch.empty(0, dtype=torch.int64), *found]), rows)


LOW, HIGH = -(2**63), 2**63 - 1
TIMES = st.integers(-20, 20) | st.integers(LOW, HIGH) | st.sampled_from([LOW, LOW + 1, HIGH - 1, HIGH])
WINDOWS = (
    st.none() | st.tuples(st.integers(0, 30), st.integers(-30, 0)) | st.just((2**62, 0)) | st.just((HIGH, -9))
)


def rows_of(rows: list[list[int]]) -> tuple[Csc, torch.Tensor]:
    indptr = torch.tensor([0, *map(len, rows)]).cumsum(0)
    times = torch.tensor([time for row in rows for time in row], dtype=torch.int64)
    return Csc(indptr, torch.zeros(times.numel(), dtype=torch.int32)), times


@given(
    rows=st.lists(st.lists(TIMES, max_size=12).map(sorted), min_size=1, max_size=5),
    window=WINDOWS,
    most=st.integers(-1, 5),
    data=st.data(),
)
def test_what_a_limit_leaves_is_what_the_specification_says(
    rows: list[list[int]], window: tuple[int, int] | None, most: int, data: st.DataObject
) -> None:
    csc, times = rows_of(rows)
    asked = data.draw(st.lists(st.tuples(st.integers(0, len(rows) - 1), TIMES), max_size=9))
    nodes = torch.tensor([node for node, _ in asked], dtype=torch.int64)
    until = torch.tensor([limit for _, limit in asked], dtype=torch.int64)
    found = time_ranges(csc, rising(csc, times), nodes, until, window, most)
    assert torch.equal(time_ranges_reference(csc, times, nodes, until, window, most), found)
    for (node, limit), (begin, end) in zip(asked, found.reshape(-1, 2).tolist(), strict=True):
        first, last = allowed_range(rows[node], limit, window)
        if most >= 0:
            first = max(first, last - most)
        start = int(csc.indptr[node])
        assert list(range(begin, end)) == list(range(start + first, start + last))


@pytest.mark.parametrize("threads", [1, 4])
def test_long_rows_and_uneven_times(threads: int) -> None:
    """Guesses from a row's ends are far off where times grow by powers; the answer is the same."""
    rows = [sorted((i * 7919 % 1000) ** (1 + row % 4) for i in range(row * 3)) for row in range(300)]
    csc, times = rows_of(rows)
    nodes = torch.arange(3000) % 300
    until = (torch.arange(3000) * 104729 % 1_200_000) ** 2 % (10**9)
    found = time_ranges(csc, rising(csc, times), nodes, until, (10**6, -3), threads=threads)
    assert torch.equal(time_ranges_reference(csc, times, nodes, until, (10**6, -3), -1), found)


def test_a_node_that_is_no_row_and_limits_that_are_not_there_are_refused() -> None:
    csc, times = rows_of([[1, 2], [3]])
    with pytest.raises(ValueError, match=r"frontier node 2: not in \[0, 2\)"):
        time_ranges(csc, rising(csc, times), torch.tensor([2]), torch.tensor([5]))
    with pytest.raises(ValueError, match=r"until is .*: must be int64 \(1\)"):
        time_ranges(csc, rising(csc, times), torch.tensor([1]), torch.tensor([5, 6]))
    in_floats = replace(rising(csc, times), values=times.float())
    with pytest.raises(ValueError, match=r"times is .*float32.*: must be int64 \(3\)"):
        time_ranges(csc, in_floats, torch.tensor([1]), torch.tensor([5]))
