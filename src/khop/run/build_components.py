"""khop's own models, built from their options.

khop's own samplers and rules, built from their options.

khop's samplers of groups, built from their options.

Optimizers of a run, from their options; and the declaration of any other class of optimizers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, field, make_dataclass
from typing import Any

import torch

from khop.api.edges import relation_count
from khop.api.partition import clusters_of
from khop.components import Component
from khop.graph.rule import Rule
from khop.models.encoder import Encoding
from khop.models.gat import GAT, EdgeInputs
from khop.models.gcn import GCN
from khop.models.gin import GIN
from khop.models.hgt import HGT
from khop.models.layer import Residual
from khop.models.light_gcn import LightGCN
from khop.models.rgcn import RGCN, RelationColumn
from khop.models.sage import SAGE
from khop.run.builtin import (
    AdagradOptions,
    AdamOptions,
    AmsgradOptions,
    LaborOptions,
    RelationMeanOptions,
    RmspropOptions,
    SgdOptions,
    SumOptions,
    TopKOptions,
    UniformOptions,
    WeightedOptions,
)
from khop.run.contexts import ModelContext, RuleContext, SamplerContext
from khop.run.tables import (
    ClusterTable,
    GatTable,
    GroupsTable,
    HgtTable,
    ModelTable,
    RgcnTable,
    SageTable,
    SaintSizeTable,
    SaintTable,
    SaintWalkTable,
    SamplerTable,
    ShadowTable,
    StackTable,
)
from khop.sampling.group_samplers import (
    ClusterSampler,
    SaintEdges,
    SaintNodes,
    SaintSampler,
    SaintWalks,
    ShadowSampler,
)
from khop.sampling.links.links import LinkSampler
from khop.sampling.rules.labor import Labor
from khop.sampling.rules.relation_mean import RelationMean
from khop.sampling.rules.sum import Sum, SymmetricSum
from khop.sampling.rules.top_k import TopK
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted
from khop.sampling.sampler import NeighborSampler
from khop.training.optimizer_settings import OptimizerSettings


def sage(options: SageTable, context: ModelContext) -> SAGE:
    """Make a GraphSAGE, with new weights from torch's generator."""
    shape = (context.hidden, context.layers, options.dropout, options.norm, _residual(options))
    return SAGE(context.sizes, *shape, encoder=options.encoder)


def gat(options: GatTable, context: ModelContext) -> GAT:
    """Make a graph attention network, with new weights from torch's generator."""
    shape = (context.hidden, context.layers, options.dropout, options.norm, _residual(options))
    named, schema = options.edge_column, context.graph.schema
    edges = None if named is None else EdgeInputs.of(schema, named, context.sizes.edge_types)
    return GAT(context.sizes, *shape, options.encoder, options.heads, options.attention, edges)


def gin(options: SageTable, context: ModelContext) -> GIN:
    """Make a graph isomorphism network, with new weights from torch's generator."""
    shape = (context.hidden, context.layers, options.dropout, options.norm, _residual(options))
    return GIN(context.sizes, *shape)


def gcn(options: SageTable, context: ModelContext) -> GCN:
    """Make a graph convolutional network, with new weights from torch's generator."""
    shape = (context.hidden, context.layers, options.dropout, options.norm, _residual(options))
    return GCN(context.sizes, *shape, encoder=options.encoder)


def hgt(options: HgtTable, context: ModelContext) -> HGT:
    """Make a heterogeneous graph transformer, with new weights from torch's generator."""
    shape = (context.hidden, context.layers, options.dropout, options.norm)
    return HGT(context.sizes, *shape, options.heads)


def light_gcn(options: ModelTable, context: ModelContext) -> LightGCN:
    """Make a LightGCN, with new weights from torch's generator."""
    return LightGCN(context.sizes, context.hidden, context.layers)


def rgcn(options: RgcnTable, context: ModelContext) -> RGCN:
    """Make a relational GCN, with new weights from torch's generator."""
    shape = (context.hidden, context.layers, options.dropout, options.norm, _residual(options))
    encoder: Encoding = "none" if options.inputs == "columns" else "linear"
    return RGCN(context.sizes, *shape, options.bases, _relations(options, context), encoder)


def _relations(options: RgcnTable, context: ModelContext) -> RelationColumn | None:
    """Return the column of relations, with their numbers in the graph."""
    name, graph = options.relation, context.graph
    if name is None:
        return None
    having = [t for t in context.sizes.edge_types if name in graph.schema.columns.get(t, {})]
    if not having:
        there = {" ".join(t): sorted(graph.schema.columns.get(t, {})) for t in context.sizes.edge_types}
        raise ValueError(f"model.relation is {name!r}: no edge type has this column; there are {there}")
    return RelationColumn(name, {t: relation_count(graph, t, name) for t in having})


def _residual(options: StackTable) -> Residual:
    return "add" if options.residual else "none"


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


def saint_node(options: SaintSizeTable, context: SamplerContext) -> SaintSampler:
    """Make the sampler of subgraphs of drawn nodes."""
    return _saint(SaintNodes(options.subgraph_draws), options, context)


def saint_edge(options: SaintSizeTable, context: SamplerContext) -> SaintSampler:
    """Make the sampler of subgraphs of drawn edges."""
    return _saint(SaintEdges(options.subgraph_draws), options, context)


def saint_walk(options: SaintWalkTable, context: SamplerContext) -> SaintSampler:
    """Make the sampler of subgraphs of random walks."""
    return _saint(SaintWalks(options.walk_roots, options.walk_length), options, context)


def cluster(options: ClusterTable, context: SamplerContext) -> ClusterSampler:
    """Make the sampler of clusters."""
    layers, per_group = _layers(options, context), options.clusters_per_group
    clusters = clusters_of(context.graph, options.cluster_column)
    return ClusterSampler(context.graph, clusters, layers=layers, per_group=per_group, rule=context.rule)


def shadow(options: ShadowTable, context: SamplerContext) -> ShadowSampler:
    """Make the sampler of subgraphs around seeds."""
    layers, per_group = _layers(options, context), options.seeds_per_group
    return ShadowSampler(
        context.graph, context.fanouts, layers=layers, per_group=per_group, rule=context.rule
    )


def _saint(
    draw: SaintNodes | SaintEdges | SaintWalks, options: SaintTable, context: SamplerContext
) -> SaintSampler:
    return SaintSampler(
        context.graph,
        draw,
        layers=_layers(options, context),
        groups_per_epoch=options.groups_per_epoch or None,
        coverage=options.coverage,
        seed=context.seed,
        rule=context.rule,
    )


def _layers(options: GroupsTable, context: SamplerContext) -> int:
    """Return the number of blocks; ValueError for links, which are in no group."""
    if context.links is not None:
        raise ValueError(f"sampler.kind is {options.kind!r}: groups are of nodes, not of links; leave it out")
    return context.layers


# Arguments that the run sets, and that change how but not what torch computes.
_NO_OPTIONS = {"params", "lr", "weight_decay", "foreach", "fused", "capturable", "differentiable"}


def adam(options: AmsgradOptions, context: object) -> OptimizerSettings:
    """Make Adam."""
    return OptimizerSettings(torch.optim.Adam, _with_betas(options))


def adamw(options: AmsgradOptions, context: object) -> OptimizerSettings:
    """Make AdamW."""
    return OptimizerSettings(torch.optim.AdamW, _with_betas(options))


def nadam(options: AdamOptions, context: object) -> OptimizerSettings:
    """Make NAdam."""
    return OptimizerSettings(torch.optim.NAdam, _with_betas(options))


def radam(options: AdamOptions, context: object) -> OptimizerSettings:
    """Make RAdam."""
    return OptimizerSettings(torch.optim.RAdam, _with_betas(options))


def sgd(options: SgdOptions, context: object) -> OptimizerSettings:
    """Make stochastic gradient descent."""
    return OptimizerSettings(torch.optim.SGD, asdict(options))


def rmsprop(options: RmspropOptions, context: object) -> OptimizerSettings:
    """Make RMSprop."""
    return OptimizerSettings(torch.optim.RMSprop, asdict(options))


def adagrad(options: AdagradOptions, context: object) -> OptimizerSettings:
    """Make Adagrad."""
    return OptimizerSettings(torch.optim.Adagrad, asdict(options))


def component_of_class(found: object) -> Component | None:
    """Return the component of a class of optimizers, as torch.optim:Adamax; None for another object.

    Its options are the arguments with a default number, text, truth value or pair of numbers.
    """
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        return None
    options: list[Any] = [
        (name, tuple[float, ...] if isinstance(default, tuple) else type(default), field(default=default))
        for name, parameter in inspect.signature(found).parameters.items()
        if name not in _NO_OPTIONS and _is_plain(default := parameter.default)
    ]
    made: type = make_dataclass(f"{found.__name__}Options", options, frozen=True)
    return Component(made, _builder(found), lambda options, context: options)


def _builder(kind: type[torch.optim.Optimizer]) -> Callable[[Any, object], OptimizerSettings]:
    return lambda options, context: OptimizerSettings(kind, asdict(options))


def _is_plain(default: object) -> bool:
    if isinstance(default, tuple):
        return all(isinstance(number, float) for number in default)
    return isinstance(default, str | int | float)


def _with_betas(options: AdamOptions) -> dict[str, object]:
    values = asdict(options)
    return {"betas": (values.pop("beta1"), values.pop("beta2")), **values}
