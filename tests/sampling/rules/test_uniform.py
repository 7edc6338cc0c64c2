"""Uniform draws keep the promises of every rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from khop.graph.rule import Rule
from khop.sampling.rules.uniform import Uniform
from khop.testing.rule import PROMISES


@pytest.mark.parametrize("rule", [Uniform(), Uniform(replacement=True)], ids=str)
@pytest.mark.parametrize("keeps", PROMISES, ids=lambda keeps: keeps.__name__)
def test_it_keeps_the_promises_of_a_rule(keeps: Callable[[Rule], None], rule: Rule) -> None:
    keeps(rule)


def test_it_needs_nothing_but_the_edges() -> None:
    assert Uniform().needs(("user", "buys", "item")) == ()
    assert Uniform().is_uniform


def test_a_row_gives_as_many_edges_as_the_fanout() -> None:
    assert [Uniform().most(fanout) for fanout in (-1, 0, 7)] == [None, 0, 7]
