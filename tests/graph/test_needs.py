"""Needs of rules and of negatives, told apart."""

from __future__ import annotations

from khop.draw import UniformNegatives
from khop.graph.needs import NegativeNeed, negative_needs, rule_needs
from khop.graph.rule import Need, NeedKind

BUYS = ("user", "buys", "item")


def test_each_need_goes_to_rules_or_to_negatives_in_order() -> None:
    weights = Need(NeedKind.WEIGHT_SUMS, BUYS, "price")
    times = Need(NeedKind.TIMES, BUYS, "time")
    negatives = NegativeNeed(BUYS, UniformNegatives(2))
    mixed = [weights, negatives, times]
    assert rule_needs(mixed) == [weights, times]
    assert negative_needs(mixed) == [negatives]
