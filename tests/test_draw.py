"""Keys of draws: a function of purpose, epoch and step, as docs/randomness.md specifies it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.draw import DrawKey, Purpose, mix64, stream
from khop.testing import reference as sampling

WORDS = st.integers(0, (1 << 64) - 1)


@given(seed=WORDS, purpose=st.sampled_from(Purpose), epoch=WORDS, step=WORDS)
def test_a_key_is_that_of_the_specification(seed: int, purpose: Purpose, epoch: int, step: int) -> None:
    assert DrawKey.of(seed, purpose, epoch, step).value == sampling.draw_key(seed, purpose, epoch, step)


@given(word=WORDS, hop=st.integers(0, 5), names=st.tuples(*[st.text(max_size=8)] * 3))
def test_words_and_streams_are_those_of_the_specification(
    word: int, hop: int, names: tuple[str, str, str]
) -> None:
    assert mix64(word) == sampling.mix64(word)
    assert stream(hop, names) == sampling.stream(hop, names)


def test_a_further_draw_has_another_key() -> None:
    key = DrawKey.of(7, Purpose.HOP)
    assert key.plus(0) == key
    assert len({key.plus(draws).value for draws in range(100)}) == 100


@pytest.mark.parametrize("value", [-1, 1 << 64, 1.0, True])
def test_a_key_has_64_bits(value: int) -> None:
    with pytest.raises(ValueError, match="key"):
        DrawKey(value)
