"""Stores that draw wrongly by weight or by time are refused by what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from contracts.test_graph_store import Smallest
from khop.draw import DrawKey, FrontierByType, NeighborsByType
from khop.graph.rule import Hop, Rule
from khop.sampling.rules.temporal import Temporal
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted
from khop.testing import graph_rules as suite
from khop.testing.graph_rules import PROMISES, Make
from khop.testing.promises import BrokenPromise, keep_all


def test_a_store_with_four_members_keeps_the_suite() -> None:
    keep_all(PROMISES, lambda plain: Smallest(plain.in_memory()))


class ByAnotherRule(Smallest):
    """Some rules are replaced by others."""

    def rule(self, rule: Rule) -> Rule:
        """The rule that is drawn by."""
        raise NotImplementedError

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        rule = self.rule(hop.rule)
        reads_times = isinstance(rule, Temporal)
        given = frontier if reads_times else {t: replace(of, until=None) for t, of in frontier.items()}
        return self.inner.sample_hop(given, replace(hop, rule=rule), key)


class NoWindow(ByAnotherRule):
    """Windows of time are not read."""

    def rule(self, rule: Rule) -> Rule:
        return replace(rule, window=None) if isinstance(rule, Temporal) else rule


class UniformWithoutColumn(ByAnotherRule):
    """A rule whose column no edge type has draws uniformly."""

    def rule(self, rule: Rule) -> Rule:
        columns = {name for of_type in self.schema.columns.values() for name in of_type}
        has_columns = all(need.column in columns for t in self.schema.edge_types for need in rule.needs(t))
        return rule if has_columns else Uniform()


class PositiveWeights(ByAnotherRule):
    """A weight below zero is not drawn, and no error."""

    def rule(self, rule: Rule) -> Rule:
        weights = self.inner.columns.values()
        is_wrong = any((of["weight"] < 0).any() for of in weights if "weight" in of)
        return Uniform() if is_wrong and isinstance(rule, Weighted) else rule


class NoLimits(ByAnotherRule):
    """A temporal rule without time limits draws from all edges."""

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        is_limited = all(of.until is not None for of in frontier.values())
        rule = hop.rule if is_limited or not isinstance(hop.rule, Temporal) else hop.rule.inner
        return self.inner.sample_hop(frontier, replace(hop, rule=rule), key)


class NothingWithoutWeights(Smallest):
    """Edge types without weights have no edges for a weighted rule."""

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        drawn = dict(self.inner.sample_hop(frontier, hop, key))
        for edge_type, found in drawn.items():
            if isinstance(hop.rule, Weighted) and "weight" not in self.schema.columns.get(edge_type, {}):
                drawn[edge_type] = replace(found, offsets=found.offsets * 0, nodes=found.nodes[:0])
        return drawn


WRONG: dict[type[Smallest], tuple[Callable[[Make], None], str]] = {
    NoWindow: (suite.draws_by_weight_and_time_follow_the_specification, "Sample by weight and time as"),
    UniformWithoutColumn: (suite.a_missing_column_is_named, "no error was raised, must be a ValueError"),
    PositiveWeights: (suite.a_wrong_weight_is_named, "weight -2.0: no error was raised"),
    NoLimits: (suite.a_temporal_rule_needs_limits, "no time limits: no error was raised"),
    NothingWithoutWeights: (suite.edge_types_without_the_column_are_drawn_uniformly, "by weight"),
}


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_a_wrong_store_is_refused_by_what_is_wrong(kind: type[Smallest], few_examples: None) -> None:
    promise, sentence = WRONG[kind]
    with pytest.raises(BrokenPromise, match=re.escape(sentence)):
        promise(lambda plain: kind(plain.in_memory()))


def test_each_promise_has_a_wrong_store() -> None:
    assert {promise for promise, _ in WRONG.values()} == set(PROMISES)
