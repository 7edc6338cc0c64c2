import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import khop._core as _core
from khop.kernels.checks import (
    check_ids,
    check_offsets,
    first_outside_reference,
    first_wrong_offset_reference,
)


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
