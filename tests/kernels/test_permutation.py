from collections import Counter
from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from khop.kernels.permutation import permutation_slice
from khop.testing import reference

KEYS = st.integers(0, 2**64 - 1)


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


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_keys_reach_all_orders_of_few_evenly(count: int) -> None:
    keys = 200 * len(list(permutations(range(count))))
    seen = Counter(tuple(permutation_slice(key, count, 0, count).tolist()) for key in range(keys))
    assert set(seen) == set(permutations(range(count)))
    statistic = sum((times - 200) ** 2 / 200 for times in seen.values())
    assert 1e-4 < chi2.sf(statistic, len(seen) - 1) < 1 - 1e-4


def test_every_index_goes_everywhere_evenly() -> None:
    count, keys = 100, 4000
    entries = torch.stack([permutation_slice(key, count, 0, count) for key in range(keys)])
    for index in (0, 1, 50, 99):
        times = torch.bincount(entries[:, index], minlength=count).double()
        statistic = float(((times - keys / count) ** 2 / (keys / count)).sum())
        assert 1e-4 < chi2.sf(statistic, count - 1) < 1 - 1e-4


@pytest.mark.parametrize(("count", "start", "stop"), [(5, 3, 2), (5, 0, 6), (2**63, 0, 1)])
def test_a_slice_outside_is_refused(count: int, start: int, stop: int) -> None:
    with pytest.raises(ValueError, match=f"of {count}: must rise from 0"):
        permutation_slice(0, count, start, stop)
