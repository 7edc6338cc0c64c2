"""khop's own samplers and rules, built from their options."""

from __future__ import annotations

from khop.config.builtin import (
    LaborOptions,
    RelationMeanOptions,
    SumOptions,
    TopKOptions,
    UniformOptions,
    WeightedOptions,
)
from khop.config.contexts import RuleContext, SamplerContext
from khop.config.tables import SamplerTable
from khop.rules.labor import Labor
from khop.rules.relation_mean import RelationMean
from khop.rules.rule import Rule
from khop.rules.sum import Sum
from khop.rules.symmetric_sum import SymmetricSum
from khop.rules.top_k import TopK
from khop.rules.uniform import Uniform
from khop.rules.weighted import Weighted
from khop.sampling.links import LinkSampler
from khop.sampling.neighbor import NeighborSampler


def neighbor(options: SamplerTable, context: SamplerContext) -> NeighborSampler | LinkSampler:
    """Make the sampler of the neighborhoods of nodes, or of links and their negatives."""
    graph, fanouts, rule, expansion = context.graph, context.fanouts, context.rule, context.expansion
    if context.links is None:
        return NeighborSampler(
            graph, fanouts, rule=rule, expansion=expansion, edge_ids=bool(context.edge_columns)
        )
    links = context.links
    return LinkSampler(
        graph,
        fanouts,
        negatives=links.negatives,
        exclude=links.exclude,
        relation=links.relation,
        rule=rule,
        expansion=expansion,
        edge_ids=bool(context.edge_columns),
    )


def uniform(options: UniformOptions, context: RuleContext) -> Uniform:
    """Make the rule of uniform draws."""
    return Uniform(options.replacement)


def summing(options: SumOptions, context: RuleContext) -> Sum:
    """Make the rule of draws that estimate sums."""
    return Sum(_inner(options))


def symmetric_sum(options: SumOptions, context: RuleContext) -> SymmetricSum:
    """Make the rule of draws that estimate normalized sums."""
    return SymmetricSum(_inner(options))


def relation_mean(options: RelationMeanOptions, context: RuleContext) -> RelationMean:
    """Make the rule of draws that estimate means by relation."""
    return RelationMean(options.column, Labor() if options.inner == "labor" else Uniform())


def weighted(options: WeightedOptions, context: RuleContext) -> Weighted:
    """Make the rule of draws by weight."""
    return Weighted(options.column, options.replacement)


def labor(options: LaborOptions, context: RuleContext) -> Labor:
    """Make the rule of draws by numbers that all rows share."""
    return Labor(options.layer_dependent, options.kappa)


def top_k(options: TopKOptions, context: RuleContext) -> TopK:
    """Make the rule of the largest values."""
    return TopK(options.column)


def _inner(options: SumOptions) -> Rule:
    match options.inner:
        case "labor":
            return Labor(options.layer_dependent, options.kappa)
        case "top-k":
            return TopK(options.column)
    return Weighted(options.column, options.replacement) if options.column else Uniform(options.replacement)
