"""Exact mean and standard deviation, with the same bits in any order and grouping of the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

import khop._core as _core

_LIMB_BITS = 32
_ROOT_BITS = 64  # more than a double has


@dataclass(frozen=True)
class Moments:
    """Count, extremes and exact sums of numbers. NaN means missing and is counted separately."""

    count: int = 0
    missing: int = 0
    minimum: float = np.inf  # without numbers
    maximum: float = -np.inf
    total: Fraction = Fraction(0)
    squares: Fraction = Fraction(0)

    @classmethod
    def of(cls, numbers: npt.NDArray[Any]) -> Moments:
        """Sum numbers; ValueError with the position of the first infinite one."""
        if numbers.dtype not in _SUMMED:
            numbers = numbers.astype(np.int64 if np.issubdtype(numbers.dtype, np.integer) else np.float64)
        sums = _core.ExactSums()
        infinite = _core.add_exactly(sums, np.ascontiguousarray(numbers).reshape(-1))
        if infinite >= 0:
            raise ValueError(f"number {infinite} is {numbers.reshape(-1)[infinite]}: must be finite or NaN")
        if sums.count == 0:
            return cls(missing=sums.missing)
        return cls(
            sums.count,
            sums.missing,
            sums.minimum,
            sums.maximum,
            _fraction(sums.sum_limbs(), _core.SUM_SHIFT),
            _fraction(sums.square_limbs(), _core.SQUARE_SHIFT),
        )

    def merged(self, other: Moments) -> Moments:
        """Return the combined moments."""
        return Moments(
            self.count + other.count,
            self.missing + other.missing,
            min(self.minimum, other.minimum),
            max(self.maximum, other.maximum),
            self.total + other.total,
            self.squares + other.squares,
        )

    def mean(self) -> float:
        """Return the mean, rounded once; 0 without numbers."""
        return float(self.total / self.count) if self.count else 0.0

    def std(self) -> float:
        """Return the population standard deviation, rounded at the end; 0 without numbers."""
        if not self.count:
            return 0.0
        return _root(self.squares / self.count - (self.total / self.count) ** 2)


_SUMMED = (np.dtype(np.float64), np.dtype(np.float32), np.dtype(np.int64))


def _fraction(limbs: Sequence[int], shift: int) -> Fraction:
    whole = sum(limb << (_LIMB_BITS * at) for at, limb in enumerate(limbs))
    return Fraction(whole, 1 << shift)


def _root(square: Fraction) -> float:
    """Return the square root: an integer root of at least 64 bits, rounded once."""
    if square == 0:
        return 0.0
    bits = square.numerator.bit_length() - square.denominator.bit_length()
    scale = max(0, _ROOT_BITS - bits // 2 + 1)
    root = isqrt((square.numerator << (2 * scale)) // square.denominator)
    return float(Fraction(root, 1 << scale))
