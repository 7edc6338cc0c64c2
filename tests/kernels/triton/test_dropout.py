"""Keyed dropout by Triton drops what the reference drops, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from khop.kernels.activations import dropout, dropout_key, dropout_reference
from support.triton_rows import DEVICE
from support.triton_segments import DTYPES, assert_same_bits, by_triton, with_gradient

KEYS = (5, -(1 << 62) + 12345)


def on_device(key: int) -> Tensor:
    return torch.full((1,), key, device=DEVICE)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (3, 5), (130, 17)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_gradients_are_those_of_the_reference(
    dtype: torch.dtype, shape: tuple[int, int], key: int
) -> None:
    x, gradient = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    with by_triton(), dropout_key(on_device(key)):
        for call in range(2):
            found = with_gradient(dropout, x.to(DEVICE), gradient.to(DEVICE), 0.2)
            for values, of in zip(found, (x, gradient), strict=True):
                expected = dropout_reference(of, torch.tensor([key]), call, round(0.2 * 65536))
                assert_same_bits(values.cpu(), expected)


def test_the_share_that_is_dropped_is_the_rate_and_calls_differ() -> None:
    count, rate = 1 << 16, 0.3
    dropped = round(rate * 65536)
    first, second = (
        dropout_reference(torch.ones(count), torch.tensor([7]), call, dropped) == 0 for call in (0, 1)
    )
    for share in (first, second):
        assert abs(int(share.sum()) - count * rate) < 5 * (count * rate * (1 - rate)) ** 0.5
    assert abs(int((first & second).sum()) - count * rate**2) < 5 * (count * rate**2) ** 0.5


def test_a_key_gives_the_same_values_again_and_none_gives_torchs_own() -> None:
    x = torch.ones(400, device=DEVICE)
    outputs = []
    for key in (3, 3, 4):
        with by_triton(), dropout_key(on_device(key)):
            outputs.append(dropout(x, 0.5))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    with by_triton():
        torch.manual_seed(1)
        own = dropout(x, 0.5)
        torch.manual_seed(1)
        assert torch.equal(own, torch.nn.functional.dropout(x, 0.5))


def test_the_cpu_keeps_torchs_generator() -> None:
    x = torch.ones(64)
    torch.manual_seed(1)
    expected = dropout(x, 0.5)
    torch.manual_seed(1)
    with dropout_key(torch.tensor([3])):
        assert torch.equal(dropout(x, 0.5), expected)
