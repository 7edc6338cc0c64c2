from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.csc import Csc
from khop.kernels.weight_sums import weight_sums, weight_sums_reference
from khop.testing.reference import whole_weights

NUMBERS = st.floats(0, allow_nan=False, allow_infinity=False) | st.sampled_from(
    [0.0, 0.25, 1.0, 3.0, 5e-324, 2.0**-1022, 2.0**-500, 1.7976931348623157e308, 1.0 - 2.0**-53]
)


def rows_of(degrees: list[int]) -> Csc:
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    return Csc(indptr, torch.zeros(int(indptr[-1]), dtype=torch.int32))


@given(rows=st.lists(st.lists(NUMBERS, max_size=8), min_size=1, max_size=5), narrow=st.booleans())
def test_weights_become_whole_numbers_as_specified(rows: list[list[float]], narrow: bool) -> None:
    csc = rows_of([len(row) for row in rows])
    weights = torch.tensor([weight for row in rows for weight in row], dtype=torch.float64)
    if narrow:
        weights = weights.clamp(max=3e38).float()
        pieces = weights.double().split([len(row) for row in rows])
        rows = [piece.tolist() for piece in pieces]
    expected = [total for row in rows for total in accumulate(whole_weights(row))]
    assert weight_sums(csc, weights).tolist() == expected
    assert weight_sums_reference(csc, weights)[0].tolist() == expected


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float16, torch.bfloat16]
)
def test_weights_of_any_dtype(dtype: torch.dtype) -> None:
    weights = torch.tensor([0, 1, 0, 1, 1]).to(dtype)
    assert weight_sums(rows_of([3, 2]), weights).tolist() == [0, 2**31, 2**31, 2**31, 2**32]


def test_counts_keep_their_proportions_exactly() -> None:
    assert weight_sums(rows_of([3]), torch.tensor([1, 2, 5])).diff().tolist() == [2 * 2**29, 5 * 2**29]


def test_threads_do_not_change_a_bit() -> None:
    degrees = [row % 7 for row in range(20_000)]
    weights = torch.rand(sum(degrees), generator=torch.Generator().manual_seed(1))
    expected = weight_sums(rows_of(degrees), weights)
    assert torch.equal(weight_sums(rows_of(degrees), weights, threads=3), expected)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), -5e-324])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_bad_weight_is_named(bad: float, threads: int) -> None:
    csc = rows_of([2] * 20_000)
    weights = torch.ones(40_000, dtype=torch.float64)
    weights[[12_345, 30_000]] = bad
    with pytest.raises(
        ValueError, match=rf"weight {bad} at position 12345: must be a finite number, 0 or more"
    ):
        weight_sums(csc, weights, threads=threads)
    assert weight_sums_reference(csc, weights)[1] == 12_345


def test_weights_that_do_not_fit_the_edges_are_refused() -> None:
    for weights in (torch.ones(4), torch.ones(3, 1), torch.ones(3, device="meta")):
        with pytest.raises(ValueError, match=r"must be numbers \(3\) on cpu"):
            weight_sums(rows_of([3]), weights)
