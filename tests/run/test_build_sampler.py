"""Samplers and rules of a run are built from their options."""

from __future__ import annotations

from typing import Any

import pytest

from khop import Expansion, LinkSampler, NeighborSampler, Rule, UniformNegatives
from khop.components import RULES, SAMPLERS
from khop.run.contexts import LinkSettings, RuleContext, SamplerContext
from khop.sampling.links.exclusion import Exclude
from khop.sampling.rules.labor import Labor
from khop.sampling.rules.sum import RelationMean, Sum, SymmetricSum
from khop.sampling.rules.top_k import TopK
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted
from support.small_graphs import shop

GRAPH = shop().store


def test_seeds_decide_between_nodes_and_links() -> None:
    rule = Uniform(replacement=True)
    context = SamplerContext(GRAPH, [3, 2], rule, Expansion.SUBGRAPH, None)  # type: ignore[arg-type]
    of_nodes = SAMPLERS.load("neighbor").build(None, context)
    assert isinstance(of_nodes, NeighborSampler)
    assert (of_nodes.num_layers, of_nodes.rule, of_nodes.expansion) == (2, rule, Expansion.SUBGRAPH)
    links = LinkSettings(UniformNegatives(2), Exclude.EDGE)
    of_links = SAMPLERS.load("neighbor").build(
        None,
        SamplerContext(GRAPH, [3], rule, Expansion.LAYERED, links),  # type: ignore[arg-type]
    )
    assert isinstance(of_links, LinkSampler)
    assert of_links.negatives == UniformNegatives(2)


@pytest.mark.parametrize(
    ("kind", "options", "rule"),
    [
        ("uniform", {"replacement": True}, Uniform(replacement=True)),
        ("weighted", {"column": "price"}, Weighted("price")),
        ("sum", {}, Sum()),
        ("sum", {"column": "price", "replacement": True}, Sum(Weighted("price", replacement=True))),
        ("symmetric-sum", {"inner": "labor", "kappa": 4}, SymmetricSum(Labor(kappa=4))),
        ("sum", {"column": "price", "inner": "top-k"}, Sum(TopK("price"))),
        ("relation-mean", {"column": "kind", "inner": "labor"}, RelationMean("kind", Labor())),
        ("relation-mean", {"column": "kind"}, RelationMean("kind")),
    ],
)
def test_rules_have_the_values_of_their_options(kind: str, options: dict[str, Any], rule: Rule) -> None:
    component = RULES.load(kind)
    assert component.build(component.options(**options), RuleContext(GRAPH)) == rule  # type: ignore[arg-type]
