"""Digests of tensors: equal bytes have equal digests, with any number of threads, and a changed bit shows.

Numbers of sources: of one generation a batch, or spread over generations.
"""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import chdtrc  # scipy.stats takes a second to import

from khop.draw import DrawKey, Purpose, mix64
from khop.kernels.philox import (
    SourceNumbers,
    digest,
    mix64_reference,
    permutation_slice,
    philox,
    philox_reference,
    reduce_wide,
    reduce_words,
    signed,
)
from khop.testing import reference

KEYS = st.integers(0, 2**64 - 1)


WORDS = st.integers(0, 2**32 - 1)


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


@given(key=KEYS, count=st.integers(0, 3000))
def test_every_index_comes_once(key: int, count: int) -> None:
    entries = permutation_slice(key, count, 0, count)
    assert torch.equal(entries.sort().values, torch.arange(count))


@given(key=KEYS, count=st.integers(1, 2**63 - 1), data=st.data())
def test_equals_the_specification_at_any_index(key: int, count: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, min(count, start + 3)))
    expected = [reference.permutation(key, count, index) for index in range(start, stop)]
    assert permutation_slice(key, count, start, stop).tolist() == expected


def test_slices_are_pieces_of_the_whole() -> None:
    key, count = 8, 1000
    pieces = [permutation_slice(key, count, start, start + 100) for start in range(0, count, 100)]
    assert torch.equal(torch.cat(pieces), permutation_slice(key, count, 0, count))


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_keys_reach_all_orders_of_few_evenly(count: int) -> None:
    keys = 200 * len(list(permutations(range(count))))
    seen = Counter(tuple(permutation_slice(key, count, 0, count).tolist()) for key in range(keys))
    assert set(seen) == set(permutations(range(count)))
    statistic = sum((times - 200) ** 2 / 200 for times in seen.values())
    assert 1e-4 < chdtrc(len(seen) - 1, statistic) < 1 - 1e-4


def test_every_index_goes_everywhere_evenly() -> None:
    count, keys = 100, 4000
    entries = torch.stack([permutation_slice(key, count, 0, count) for key in range(keys)])
    for index in (0, 1, 50, 99):
        times = torch.bincount(entries[:, index], minlength=count).double()
        statistic = float(((times - keys / count) ** 2 / (keys / count)).sum())
        assert 1e-4 < chdtrc(count - 1, statistic) < 1 - 1e-4


@pytest.mark.parametrize(("count", "start", "stop"), [(5, 3, 2), (5, 0, 6), (2**63, 0, 1)])
def test_a_slice_outside_is_refused(count: int, start: int, stop: int) -> None:
    with pytest.raises(ValueError, match=f"of {count}: must rise from 0"):
        permutation_slice(0, count, start, stop)


IDS = torch.arange(4000) * 1_000_003


def numbers(step: int, period: int, epoch: int = 2) -> torch.Tensor:
    return SourceNumbers.of(DrawKey.of(5, Purpose.HOP, epoch, step), 17, period).keys(IDS)


@pytest.mark.parametrize("period", [1, 2, 5, 32])
@pytest.mark.parametrize("step", [0, 1, 4, 33])
def test_a_node_has_the_number_of_its_generation(step: int, period: int) -> None:
    found = [number % 2**64 for number in numbers(step, period).tolist()]
    for place in range(0, 4000, 97):
        node = int(IDS[place])
        generation = (step + ((reference.mix64(node) >> 32) * period >> 32)) // period
        key = reference.draw_key(5, Purpose.HOP, 2, generation)
        assert found[place] == reference.mix64(reference.mix64(key ^ reference.mix64(17)) ^ node)


def test_one_node_in_kappa_changes_at_each_step() -> None:
    for step in range(12):
        changed = (numbers(step, 8) != numbers(step + 1, 8)).double().mean()
        assert 0.1 < float(changed) < 0.15
    assert bool((numbers(0, 8) != numbers(8, 8)).all())
    assert bool((numbers(0, 1) != numbers(1, 1)).all())
    assert bool((numbers(0, 8) != numbers(0, 8, epoch=3)).all())


def test_a_key_without_an_epoch_is_one_of_step_0() -> None:
    alone = SourceNumbers.of(DrawKey(99), 17, 8)
    assert torch.equal(alone.keys(IDS), SourceNumbers.of(DrawKey(99), 17, 1).keys(IDS))


def test_a_further_draw_keeps_its_distance_to_the_key() -> None:
    key = DrawKey.of(5, Purpose.HOP, 2, 9)
    assert key.at_step(9) == key
    assert key.at_step(4) == DrawKey.of(5, Purpose.HOP, 2, 4)
    assert key.plus(3).at_step(4) == DrawKey.of(5, Purpose.HOP, 2, 4).plus(3)
