import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.kernels.build_csc import build_csc, build_csc_reference, group_by_destination, index_dtype

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
        (torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int32), "must be alike"),
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
