"""Digests of tensors: equal bytes have equal digests, with any number of threads, and a changed bit shows."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.digest import digest

BYTES = st.integers(0, 3 << 20)  # up to three of the blocks of a MiB


@given(length=BYTES, threads=st.integers(2, 5), at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_threads_do_not_change_a_digest_and_every_bit_does(
    length: int, threads: int, at: float, bit: int
) -> None:
    data = torch.arange(length, dtype=torch.int64).mul(2_654_435_761).to(torch.uint8)
    expected = digest(data)
    assert digest(data, threads=threads) == expected
    assert len(expected) == 16
    if length:
        data[int(at * length)] ^= 1 << bit
        assert digest(data, threads=threads) != expected


def test_dtype_and_shape_do_not_matter() -> None:
    words = torch.arange(24, dtype=torch.int64)
    assert digest(words) == digest(words.view(4, 6)) == digest(words.view(torch.uint8))
