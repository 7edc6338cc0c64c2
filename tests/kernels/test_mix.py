"""Mixed words against the same steps in Python's integers."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.philox import mixed, signed

WORDS = st.integers(0, (1 << 64) - 1)
MASK = (1 << 64) - 1


def reference(word: int) -> int:
    """The final step of SplitMix64, as its authors wrote it."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ word >> 27) * 0x94D049BB133111EB & MASK
    return word ^ word >> 31


@given(words=st.lists(WORDS, max_size=20))
def test_words_are_mixed_as_by_splitmix64(words: list[int]) -> None:
    found = mixed(torch.tensor([signed(word) for word in words], dtype=torch.int64))
    assert [word & MASK for word in found.tolist()] == [reference(word) for word in words]


@given(word=WORDS)
def test_a_signed_word_has_the_same_bits(word: int) -> None:
    assert -(1 << 63) <= signed(word) < 1 << 63
    assert signed(word) & MASK == word
