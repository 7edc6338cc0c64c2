"""Damage on the disk ends in an error that names it, or changes no batch and no state."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from damage.fuzz import fuzz, summary
from damage.mutations import TARGETS


@pytest.mark.parametrize(
    ("seed", "count", "targets"),
    [
        pytest.param(1, 60, TARGETS, id="60"),
        pytest.param(2, 20_000, TARGETS, id="20000", marks=[pytest.mark.long, pytest.mark.timeout(4 * 3600)]),
    ],
)
def test_no_damage_crashes_hangs_or_changes_a_batch(seed: int, count: int, targets: Sequence[str]) -> None:
    """`scripts/fuzz-damage` prints the same table, of as many mutations as are wanted."""
    outcomes = fuzz(seed, count, 1 if count < 1000 else os.cpu_count() or 1, targets)
    print(summary(outcomes))
    assert len(outcomes) == count
    assert [outcome for outcome in outcomes if outcome.is_failure] == []
