"""Draws within time limits keep the promises of every rule, around any rule without limits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from khop.graph.needs import RisingTimes, StoredTimes, WeightSums
from khop.graph.rule import FrontierField, Rule
from khop.sampling.rules.temporal import Temporal, TemporalStrategy
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted
from khop.testing.rule import PROMISES

BUYS = ("user", "buys", "item")
RULES = [
    Temporal("time"),
    Temporal("time", TemporalStrategy.LATEST),
    Temporal("time", window=(6, -1), inner=Uniform(replacement=True)),
    Temporal("time", inner=Weighted("weight")),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("keeps", PROMISES, ids=lambda keeps: keeps.__name__)
def test_it_keeps_the_promises_of_a_rule(keeps: Callable[[Rule], None], rule: Rule) -> None:
    keeps(rule)


def test_it_needs_the_times_and_what_its_inner_rule_needs() -> None:
    rule = Temporal("time", inner=Weighted("weight"))
    assert rule.needs(BUYS) == (
        StoredTimes(BUYS, "time"),
        RisingTimes(BUYS, "time"),
        WeightSums(BUYS, "weight"),
    )
    assert rule.frontier_fields == {FrontierField.UNTIL, FrontierField.TREE}


def test_the_latest_edges_are_not_drawn() -> None:
    with pytest.raises(ValueError, match=r"strategy=LATEST with Weighted.*leave inner out"):
        Temporal("at", TemporalStrategy.LATEST, inner=Weighted("price"))
    assert Temporal("at", strategy="latest") == Temporal("at", TemporalStrategy.LATEST)


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ((5, 1), "after 1 would allow later edges"),
        ((2, -3), "before must be 3 or more"),
        ((-1, 0), "contains no time"),
    ],
)
def test_a_window_is_in_the_past_and_not_empty(window: tuple[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Temporal("at", window=window)
