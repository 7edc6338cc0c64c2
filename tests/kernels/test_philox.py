import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.draw import mix64
from khop.kernels.philox import mix64_reference, philox, philox_reference, reduce_wide, reduce_words, signed
from khop.testing import reference

WORDS = st.integers(0, 2**32 - 1)
KEYS = st.integers(0, 2**64 - 1)


@given(key=KEYS, counters=st.lists(st.tuples(WORDS, WORDS, WORDS, WORDS), max_size=5))
def test_equals_the_specification_word_for_word(key: int, counters: list[tuple[int, int, int, int]]) -> None:
    expected = [list(reference.philox(key, counter)) for counter in counters]
    rows = torch.tensor(counters, dtype=torch.int64).reshape(-1, 4)
    assert philox(key, rows).tolist() == expected
    keys = torch.tensor([[key & 0xFFFFFFFF, key >> 32]]).expand(len(counters), 2)
    assert philox_reference(keys, rows).tolist() == expected


def test_other_devices_take_the_reference() -> None:
    assert philox(1, torch.zeros(3, 4, dtype=torch.int64, device="meta")).shape == (3, 4)


def test_strided_counters_are_read_as_they_stand() -> None:
    counters = torch.arange(32).reshape(8, 4)
    assert torch.equal(philox(3, counters[::2]), philox(3, counters)[::2])


@pytest.mark.parametrize("shape", [(4,), (2, 3), (1, 4, 1)])
def test_counters_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"must be int64 \(n, 4\)"):
        philox(0, torch.zeros(shape, dtype=torch.int64))


def test_counters_of_another_dtype_are_refused() -> None:
    with pytest.raises(ValueError, match=r"counters are torch\.int32"):
        philox(0, torch.zeros(1, 4, dtype=torch.int32))


@given(word=WORDS, bound=st.integers(1, 2**20))
def test_words_are_reduced_by_the_high_half_of_the_product(word: int, bound: int) -> None:
    assert reduce_words(torch.tensor(word), torch.tensor(bound)).item() == word * bound >> 32


@given(low=WORDS, high=WORDS, bound=st.integers(1, 2**63 - 1))
def test_wide_draws_are_reduced_by_the_high_half_of_128_bits(low: int, high: int, bound: int) -> None:
    reduced = reduce_wide(torch.tensor([low]), torch.tensor([high]), torch.tensor([bound]))
    assert reduced.item() == (low | high << 32) * bound >> 64


@given(value=KEYS)
def test_mix64_of_tensors_is_that_of_numbers(value: int) -> None:
    assert mix64_reference(torch.tensor([signed(value)])).item() == signed(mix64(value))
