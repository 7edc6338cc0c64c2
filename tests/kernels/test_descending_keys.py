"""Keys sort values of any dtype from the largest, exactly."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.descending_keys import descending_keys

FLOATS = st.floats(allow_nan=False) | st.sampled_from([0.0, -0.0, 1.0, float("inf"), 5e-324])
INTS = st.integers(-(2**63), 2**63 - 1)


@given(values=st.lists(FLOATS, max_size=40) | st.lists(INTS, max_size=40))
def test_keys_order_as_values_do_the_other_way(values: list[float]) -> None:
    dtype = torch.int64 if values and isinstance(values[0], int) else torch.float64
    keys = descending_keys(torch.tensor(values, dtype=dtype)).tolist()
    for one, first in zip(values, keys, strict=True):
        for other, second in zip(values, keys, strict=True):
            assert (first < second) == (one > other)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.uint8, torch.int8, torch.bool], ids=str
)
def test_narrow_values_too(dtype: torch.dtype) -> None:
    values = torch.tensor([0, 1, 0], dtype=dtype)
    first, second, third = descending_keys(values).tolist()
    assert first == third > second


def test_a_value_that_is_no_number_is_named() -> None:
    with pytest.raises(ValueError, match="nan at position 1: must be a number"):
        descending_keys(torch.tensor([1.0, float("nan")]))
