"""Keeping rows of other ranks that this rank's batches will need most often."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from torch import Tensor

from khop.distributed.partitioned_features import PartitionedFeatures
from khop.draw import Uniform
from khop.features.cache_plan import CachePlan
from khop.features.row_cache import RowCache
from khop.graph.store import GraphStore
from khop.loading.loader import BatchMaker, Position
from khop.loading.visit_counts import visit_counts
from khop.partition.parts_graph import PartsGraph
from khop.partition.visits import Topology, visit_probabilities
from khop.sampling.neighbor import NeighborSampler
from khop.sampling.seeds import NodeSeeds
from khop.schema import NodeType, Schema


class CacheBy(StrEnum):
    """How it is known which rows batches will need."""

    AUTO = "auto"  # visits where they can be computed, else counts
    VISITS = "visits"  # by the chance that a batch has a node, from the edges of all parts
    COUNTS = "counts"  # by drawing the batches of the first epoch


def with_cache(
    maker: BatchMaker, graph: GraphStore, features: PartitionedFeatures, budget_bytes: int, by: CacheBy
) -> PartitionedFeatures:
    """The same columns, with rows of other ranks kept for the batches of `maker`. Collective.

    ValueError where the chances of visits are asked for and cannot be computed: they take uniform draws
    around seeds that are nodes, and the edges of all parts.
    """
    topology = _topology(maker, graph)
    if by is CacheBy.VISITS and topology is None:
        raise ValueError(
            "a cache by visits: takes edges of all parts, uniform draws and seeds that are nodes; "
            "plan it by counts"
        )
    if topology is None or by is CacheBy.COUNTS:
        counts = {t: graph.num_nodes(t) for t in graph.schema.node_types}
        steps = [Position(0, step) for step in range(maker.order.num_steps)]
        visits = visit_counts(maker, steps, counts)
    else:
        visits = _chances(maker, topology, features)
    for node_type, of_type in visits.items():
        first, end = _held(features, node_type)
        of_type[first:end] = 0
    schema = Schema(graph.schema.node_types, (), columns=features.specs)
    plan = CachePlan.of(schema, maker.columns.of_nodes, visits, budget_bytes)
    return replace(features, kept=RowCache.filled(plan, replace(features, kept=RowCache.empty()), schema))


def _topology(maker: BatchMaker, graph: GraphStore) -> Topology | None:
    """The edges of all parts; None where they do not lie here, or do not say what a batch will need."""
    sampler = maker.sampler
    is_uniform = isinstance(sampler, NeighborSampler) and isinstance(sampler.rule, Uniform)
    if not is_uniform or not isinstance(maker.order.seeds, NodeSeeds) or not isinstance(graph, PartsGraph):
        return None
    return Topology.of_parts(graph.folder.parts)


def _chances(maker: BatchMaker, topology: Topology, features: PartitionedFeatures) -> dict[NodeType, Tensor]:
    """Of a batch of this rank's share of seeds: those that it holds, where seeds go to who holds them."""
    sampler, order = maker.sampler, maker.order
    assert isinstance(sampler, NeighborSampler)
    assert isinstance(order.seeds, NodeSeeds)
    seeds = order.seeds.nodes
    if order.homes is not None:
        spans = {t: _held(features, t) for t in seeds}
        seeds = {t: ids[(ids >= spans[t][0]) & (ids < spans[t][1])] for t, ids in seeds.items()}
    share = -(-order.batch_size // order.world_size)
    return visit_probabilities(topology, seeds, share, sampler.fanouts)


def _held(features: PartitionedFeatures, node_type: NodeType) -> tuple[int, int]:
    return features.holders.held(features.offsets[node_type], features.holders.rank)
