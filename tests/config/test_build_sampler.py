"""Samplers and rules of a run are built from their options."""

from __future__ import annotations

from khop import Expansion, LinkSampler, NeighborSampler, UniformNegatives
from khop.config.build_sampler import neighbor, summing, symmetric_sum, uniform, weighted
from khop.config.builtin import SumOptions, UniformOptions, WeightedOptions
from khop.config.contexts import LinkSettings, RuleContext, SamplerContext
from khop.config.tables import SamplerTable
from khop.rules.labor import Labor
from khop.rules.sum import Sum
from khop.rules.symmetric_sum import SymmetricSum
from khop.rules.top_k import TopK
from khop.rules.uniform import Uniform
from khop.rules.weighted import Weighted
from khop.sampling.exclusion import Exclude
from support.small_graphs import shop

GRAPH = shop().store


def test_seeds_decide_between_nodes_and_links() -> None:
    rule = Uniform(replacement=True)
    context = SamplerContext(GRAPH, [3, 2], rule, Expansion.SUBGRAPH, None)  # type: ignore[arg-type]
    of_nodes = neighbor(SamplerTable(), context)
    assert isinstance(of_nodes, NeighborSampler)
    assert (of_nodes.num_layers, of_nodes.rule, of_nodes.expansion) == (2, rule, Expansion.SUBGRAPH)
    links = LinkSettings(UniformNegatives(2), Exclude.EDGE)
    of_links = neighbor(
        SamplerTable(),
        SamplerContext(GRAPH, [3], rule, Expansion.LAYERED, links),  # type: ignore[arg-type]
    )
    assert isinstance(of_links, LinkSampler)
    assert of_links.negatives == UniformNegatives(2)


def test_rules_have_the_values_of_their_options() -> None:
    context = RuleContext(GRAPH)  # type: ignore[arg-type]
    assert uniform(UniformOptions(replacement=True), context) == Uniform(replacement=True)
    assert weighted(WeightedOptions(column="price"), context) == Weighted("price")
    assert summing(SumOptions(), context) == Sum()
    assert summing(SumOptions("price", replacement=True), context) == Sum(Weighted("price", replacement=True))
    assert symmetric_sum(SumOptions(inner="labor", kappa=4), context) == SymmetricSum(Labor(kappa=4))
    assert summing(SumOptions("price", inner="top-k"), context) == Sum(TopK("price"))
