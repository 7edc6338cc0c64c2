"""Dropout drops the share asked for, keeps the expectation, and repeats with the generator's seed.

relu in place has the bits of torch's, forward and backward.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.kernels.activations import dropout, relu_

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def dropped_with_seed(x: Tensor, rate: float, seed: int) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return dropout(x, rate)


@pytest.mark.parametrize("rate", [1 / 65536, 0.1, 0.2, 0.5, 0.9, 0.999])
def test_the_share_that_is_dropped_is_the_rate_and_the_rest_is_scaled(rate: float) -> None:
    count = 1 << 20
    out = dropped_with_seed(torch.ones(count, dtype=torch.float64), rate, seed=1)
    dropped = int((out == 0).sum())
    sigma = (count * rate * (1 - rate)) ** 0.5
    assert abs(dropped - count * rate) < 5 * sigma + count * 2**-17
    rounded = round(rate * 65536) / 65536
    assert out[out != 0].unique().tolist() == [pytest.approx(1 / (1 - rounded))]


@given(st.integers(0, 9), st.integers(0, 7), st.sampled_from(DTYPES), st.integers(0, 2**63))
def test_values_are_scaled_or_dropped_and_so_are_gradients(
    rows: int, width: int, dtype: torch.dtype, seed: int
) -> None:
    x = (torch.arange(rows * width).reshape(rows, width) + 1.0).to(dtype).requires_grad_()
    out = dropped_with_seed(x, 0.5, seed)
    assert out.dtype == dtype
    assert bool(((out == 0) | (out == 2 * x)).all())
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad * x, out)


def test_equal_seeds_drop_the_same_values_on_any_number_of_threads() -> None:
    x = torch.randn(500, 300)
    before = torch.get_num_threads()
    outputs = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        outputs.append(dropped_with_seed(x, 0.3, seed=5))
    torch.set_num_threads(before)
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])
    assert not torch.equal(outputs[0], dropped_with_seed(x, 0.3, seed=6))


def test_neighboring_values_are_dropped_independently() -> None:
    kept = (dropped_with_seed(torch.ones(1 << 20), 0.5, seed=2) != 0).double() - 0.5
    for distance in (1, 2, 3, 4, 8):
        assert abs(float((kept[distance:] * kept[:-distance]).mean())) < 5 * 0.25 / 2**10


def test_a_rate_of_zero_changes_nothing() -> None:
    x = torch.randn(4)
    assert dropout(x, 0.0) is x


def test_a_transposed_input_keeps_its_places() -> None:
    x = torch.arange(1.0, 13.0).reshape(3, 4).T
    out = dropped_with_seed(x, 0.5, seed=3)
    assert bool(((out == 0) | (out == 2 * x)).all())


@pytest.mark.parametrize("rate", [-0.1, 1.0, 2.0])
def test_other_rates_are_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=f"dropout rate {rate}: must be at least 0 and below 1"):
        dropout(torch.ones(3), rate)


def test_off_the_cpu_it_is_torchs_own() -> None:
    assert dropout(torch.ones(3, device="meta"), 0.5).device.type == "meta"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (37, 5)])
def test_values_and_gradients_are_torchs_bit_for_bit(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, pull = (torch.randn(*shape, generator=generator).to(dtype) for _ in range(2))
    x[:1] = 0
    found, expected = (x.clone().requires_grad_() for _ in range(2))
    out, reference = relu_(found * 1), (expected * 1).relu_()
    out.backward(pull)
    reference.backward(pull)
    assert torch.equal(out, reference)
    assert found.grad is not None
    assert expected.grad is not None
    assert torch.equal(found.grad, expected.grad)


def test_it_works_in_place() -> None:
    x = torch.tensor([[-1.0, 2.0]])
    assert relu_(x).data_ptr() == x.data_ptr()
    assert x.tolist() == [[0.0, 2.0]]
