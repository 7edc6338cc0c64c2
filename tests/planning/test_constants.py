"""The cost of a drawn edge follows the curve that was measured, at the height of this machine."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from khop.planning.constants import MEASURED, MEASURED_EDGES, SCALING, scaled_sample_ns


def test_the_curve_goes_through_what_was_measured() -> None:
    height = MEASURED.sample_ns / scaled_sample_ns(MEASURED, SCALING[3][0]) * SCALING[3][1]
    costs = [scaled_sample_ns(replace(MEASURED, sample_ns=height), edges) for edges, _ in SCALING]
    assert costs == pytest.approx([cost for _, cost in SCALING])
    assert scaled_sample_ns(MEASURED, MEASURED_EDGES) == pytest.approx(MEASURED.sample_ns)


def test_it_lies_between_its_points_and_stays_beyond_them() -> None:
    for (low, below), (high, above) in pairwise(SCALING):
        ratio = scaled_sample_ns(MEASURED, (low * high) ** 0.5) / scaled_sample_ns(MEASURED, low)
        assert min(1, above / below) < ratio < max(1, above / below)
    assert scaled_sample_ns(MEASURED, 1e11) == scaled_sample_ns(MEASURED, SCALING[-1][0])
    assert scaled_sample_ns(MEASURED, 0) == scaled_sample_ns(MEASURED, SCALING[0][0])
