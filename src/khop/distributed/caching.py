"""Caches for the remote rows that the batches of this rank need most often."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor

from khop.distributed.partitioned_features import PartitionedFeatures
from khop.features.cache_plan import CachePlan
from khop.features.renumbered import RenumberedRows
from khop.features.row_cache import RowCache
from khop.features.store import FeatureStore
from khop.graph.store import GraphStore
from khop.loading.loader import StepRequests
from khop.loading.local_source import LocalSource
from khop.loading.visit_counts import visit_counts
from khop.partition.local_partition_graph import LocalPartitionGraph
from khop.partition.visits import Topology, visit_probabilities
from khop.sampling.neighbor import NeighborSampler
from khop.sampling.seeds import NodeSeeds, SeedOrder
from khop.schema import NodeType, Schema


class CacheBy(StrEnum):
    """Methods to estimate how often batches need each row."""

    AUTO = "auto"  # visits if they can be computed, otherwise counts
    VISITS = "visits"  # the probability that a batch contains a node, from the edges of all partitions
    COUNTS = "counts"  # counted in the batches of the first epoch, which are drawn for it


@dataclass(frozen=True)
class CacheBudgets:
    """Bytes available on a rank for cached remote rows: in host memory and in device memory."""

    host_cache_bytes: int = 0
    device_cache_bytes: int = 0


def with_caches(
    source: LocalSource, order: SeedOrder, graph: GraphStore, budgets: CacheBudgets, by: CacheBy
) -> LocalSource:
    """Add caches of remote rows to a source of batches; its batches stay the same. Collective.

    The rows that batches need most often are cached on the device, the next ones on the host. If every rank
    has all columns, `source` is returned unchanged.

    ValueError if `by` is VISITS and the visit probabilities cannot be computed. They require uniform draws,
    seeds that are nodes, and the edges of all partitions.
    """
    store = source.features
    features = store.below if isinstance(store, RenumberedRows) else store
    if not isinstance(features, PartitionedFeatures):
        return source
    visits = _visits_of_others(source, order, graph, features, by)
    schema = Schema(graph.schema.node_types, (), columns=features.specs)

    def cache(budget_bytes: int, device: torch.device | str) -> RowCache:
        if not budget_bytes:
            return RowCache.empty()
        plan = CachePlan.of(schema, source.columns.of_nodes, visits, budget_bytes)
        for node_type, ids in plan.ids.items():
            visits[node_type][ids] = 0  # the next cache must not hold the same rows again
        return RowCache.filled(plan, replace(features, kept=RowCache.empty()), schema, device)

    on_device = cache(budgets.device_cache_bytes, source.device)
    kept: FeatureStore = replace(features, kept=cache(budgets.host_cache_bytes, "cpu"))
    if isinstance(store, RenumberedRows):
        kept = replace(store, below=kept)
    return replace(source, features=kept, on_device=on_device)


def _visits_of_others(
    source: LocalSource, order: SeedOrder, graph: GraphStore, features: PartitionedFeatures, by: CacheBy
) -> dict[NodeType, Tensor]:
    """Return how often batches need each node, by node type; 0 for nodes stored on this rank."""
    topology = _topology(source, order, graph)
    if by is CacheBy.VISITS and topology is None:
        raise ValueError(
            "cache by visits: requires the edges of all parts, uniform draws and node seeds; use counts"
        )
    if topology is None or by is CacheBy.COUNTS:
        counts = {t: graph.num_nodes(t) for t in graph.schema.node_types}
        visits = visit_counts(source.sampler, StepRequests(order, 0, range(order.num_steps)), counts)
    else:
        visits = _chances(source, order, topology, features)
    for node_type, of_type in visits.items():
        first, end = _held(features, node_type)
        of_type[first:end] = 0
    return visits


def _topology(source: LocalSource, order: SeedOrder, graph: GraphStore) -> Topology | None:
    """Return the edges of all partitions, or None if visit probabilities cannot be computed.

    None means that this rank lacks some of the edges, or that they do not determine the nodes of a batch.
    """
    sampler = source.sampler
    is_uniform = isinstance(sampler, NeighborSampler) and sampler.rule.is_uniform
    if not is_uniform or not isinstance(order.seeds, NodeSeeds) or not isinstance(graph, LocalPartitionGraph):
        return None
    return Topology.of_parts(graph.folder.parts)


def _chances(
    source: LocalSource, order: SeedOrder, topology: Topology, features: PartitionedFeatures
) -> dict[NodeType, Tensor]:
    """Return the probability that this rank's share of a batch contains each node.

    If seeds have affinity, only the seeds stored on this rank count. A rank that stores none gets surplus
    seeds of other ranks, so all seeds count.
    """
    sampler = source.sampler
    assert isinstance(sampler, NeighborSampler)
    assert isinstance(order.seeds, NodeSeeds)
    seeds = order.seeds.nodes
    if order.affinity is not None:
        spans = {t: _held(features, t) for t in seeds}
        own = {t: ids[(ids >= spans[t][0]) & (ids < spans[t][1])] for t, ids in seeds.items()}
        seeds = own if any(ids.numel() for ids in own.values()) else seeds
    share = -(-order.batch_size // order.world_size)
    return visit_probabilities(topology, seeds, share, sampler.fanouts)


def _held(features: PartitionedFeatures, node_type: NodeType) -> tuple[int, int]:
    return features.holders.held(features.offsets[node_type], features.holders.rank)
