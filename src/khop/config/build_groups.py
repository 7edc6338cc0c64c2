"""khop's samplers of groups, built from their options."""

from __future__ import annotations

from khop.api.cluster_graph import clusters_of
from khop.config.contexts import SamplerContext
from khop.config.tables import (
    ClusterTable,
    GroupsTable,
    SaintSizeTable,
    SaintTable,
    SaintWalkTable,
    ShadowTable,
)
from khop.sampling.cluster import ClusterSampler
from khop.sampling.saint import SaintSampler
from khop.sampling.saint_draws import SaintEdges, SaintNodes, SaintWalks
from khop.sampling.shadow import ShadowSampler


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
