"""Draws of `SymmetricSum` are those of `Sum`; they ask samplers for degrees."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from khop.graph.rule import Rule
from khop.sampling.rules.sum import Sum, SymmetricSum
from khop.sampling.rules.temporal import Temporal
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted
from khop.testing.rule import PROMISES

BY_WEIGHT = SymmetricSum(Weighted("weight", replacement=True))


@pytest.mark.core(10)
@pytest.mark.parametrize("rule", [SymmetricSum(), Temporal("time", inner=BY_WEIGHT)], ids=str)
@pytest.mark.parametrize("keeps", PROMISES, ids=lambda keeps: keeps.__name__)
def test_it_keeps_the_promises_of_a_rule(keeps: Callable[[Rule], None], rule: Rule) -> None:
    keeps(rule)


def test_degrees_are_counted_by_uniform_draws_within_the_same_limits() -> None:
    assert Uniform().degrees is None
    assert Sum().degrees is None
    assert Temporal("time", inner=Sum()).degrees is None
    assert BY_WEIGHT.degrees == Sum()
    assert Temporal("time", window=(5, 0), inner=BY_WEIGHT).degrees == Temporal(
        "time", window=(5, 0), inner=Sum()
    )
    assert SymmetricSum() != Sum()
