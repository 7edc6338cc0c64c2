"""Clocks of several machines are told apart by what cannot be: an answer before its question."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.runtime.clocks import clock_offset, offset_between
from khop.runtime.group import ALONE

Way = st.floats(1e-5, 0.1)


def passed(rounds: list[tuple[float, float]], ahead: float) -> tuple[Tensor, Tensor]:
    """Exchanges of two sides that each take some way: own clock, the other's."""
    own: list[list[float]] = []
    other: list[list[float]] = []
    now = 0.0
    for there, back in rounds:
        met = now + max(there, back)  # both have entered, at `now`
        own.append([now + ahead, met + there + ahead])
        other.append([now, met + back])
        now = met + 1
    return torch.tensor(own, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)


@given(st.lists(st.tuples(Way, Way), min_size=1, max_size=8), st.floats(1, 1e6))
def test_an_offset_is_found_to_half_the_quickest_exchange(
    rounds: list[tuple[float, float]], ahead: float
) -> None:
    own, other = passed(rounds, ahead)
    quickest = float(torch.minimum(own[:, 1] - own[:, 0], other[:, 1] - other[:, 0]).min())
    longest = max(float((own[:, 1] - own[:, 0]).min()), float((other[:, 1] - other[:, 0]).min()))
    assert abs(offset_between(own, other) - ahead) <= (quickest + longest) / 2 + 1e-6
    assert offset_between(other, own) == pytest.approx(-offset_between(own, other))


@given(st.lists(st.tuples(Way, Way), min_size=1, max_size=8))
def test_one_clock_is_not_corrected(rounds: list[tuple[float, float]]) -> None:
    assert offset_between(*passed(rounds, 0.0)) == 0.0


def test_a_process_alone_has_the_clock() -> None:
    assert clock_offset(ALONE) == 0.0
