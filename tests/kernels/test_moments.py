"""Exact moments: the same bits in any order and grouping."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.moments import Moments

NUMBERS = st.lists(st.floats(allow_infinity=False, width=64) | st.floats(-10, 10), max_size=40)


@given(NUMBERS, st.randoms(use_true_random=False), st.integers(1, 9))
def test_neither_order_nor_grouping_changes_a_bit(numbers: list[float], random: object, step: int) -> None:
    moments = Moments.of(np.array(numbers, np.float64))
    exact = [Fraction(number) for number in numbers if number == number]
    mean = sum(exact, Fraction(0)) / max(len(exact), 1)
    variance = sum(((number - mean) ** 2 for number in exact), Fraction(0)) / max(len(exact), 1)
    with localcontext(prec=80):
        std = (Decimal(variance.numerator) / Decimal(variance.denominator)).sqrt()
    assert (moments.count, moments.mean(), moments.std()) == (len(exact), float(mean), float(std))
    random.shuffle(numbers)  # type: ignore[attr-defined]
    merged = Moments()
    for at in range(0, len(numbers), step):
        merged = merged.merged(Moments.of(np.array(numbers[at : at + step], np.float64)))
    assert merged == moments


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30))
def test_integers_are_summed_as_integers(numbers: list[int]) -> None:
    moments = Moments.of(np.array(numbers, np.int64))
    assert moments.total == sum(numbers)
    assert moments.squares == sum(number**2 for number in numbers)


@given(st.lists(st.floats(width=32, allow_infinity=False), max_size=30))
def test_float32_is_summed_as_its_double(numbers: list[float]) -> None:
    assert Moments.of(np.array(numbers, np.float32)) == Moments.of(np.array(numbers, np.float64))


def test_extremes_and_missing_numbers() -> None:
    moments = Moments.of(np.array([[2.0, np.nan], [-1.0, 5.0]]))
    assert (moments.count, moments.missing, moments.minimum, moments.maximum) == (3, 1, -1.0, 5.0)
    assert (Moments.of(np.array([np.nan])).mean(), Moments().std()) == (0.0, 0.0)
    assert Moments.of(np.array([True, False, True])).mean() == pytest.approx(2 / 3)
    assert Moments.of(np.array([7, 9], np.uint8)).std() == 1.0


def test_cancellation_loses_nothing() -> None:
    moments = Moments.of(np.array([1e300, 1.0, -1e300, 1e-300]))
    assert moments.mean() == 0.25
    assert Moments.of(np.array([1e15, 1e15 + 1])).std() == 0.5


@pytest.mark.parametrize("infinite", [np.inf, -np.inf])
def test_the_first_infinite_number_is_named(infinite: float) -> None:
    with pytest.raises(ValueError, match=f"number 1 is {infinite}: must be finite or NaN"):
        Moments.of(np.array([1.0, infinite, infinite]))
