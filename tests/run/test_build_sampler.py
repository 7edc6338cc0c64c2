"""Samplers and rules of a run are built from their options."""

from __future__ import annotations

from khop import Expansion, LinkSampler, NeighborSampler, UniformNegatives
from khop.run.build_components import neighbor, summing, symmetric_sum, uniform, weighted
from khop.run.builtin import SumOptions, UniformOptions, WeightedOptions
from khop.run.contexts import LinkSettings, RuleContext, SamplerContext
from khop.run.tables import SamplerTable
from khop.sampling.links.exclusion import Exclude
from khop.sampling.rules.labor import Labor
from khop.sampling.rules.sum import Sum, SymmetricSum
from khop.sampling.rules.top_k import TopK
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted
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
