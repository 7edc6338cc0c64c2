"""Caches for the rows of other ranks, or on disk, that the batches of this rank need most often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from torch import Tensor

from khop.errors import Unsupported
from khop.features.cache_plan import CachePlan
from khop.features.row_cache import RowCache
from khop.features.store import FeatureStore
from khop.graph.store import GraphStore
from khop.loading.local_source import LocalSource
from khop.loading.source import StepRequests
from khop.loading.visit_counts import visit_counts
from khop.sampling.seeds import NodeSeeds, SeedOrder
from khop.schema import NodeType, Schema


class CacheBy(StrEnum):
    """Methods to estimate how often batches need each row."""

    AUTO = "auto"  # visits if they can be computed, otherwise counts
    VISITS = "visits"  # the probability that a batch contains a node, from the edges of all partitions
    COUNTS = "counts"  # counted in the batches of the first epoch, which are drawn for it


@dataclass(frozen=True)
class CacheBudgets:
    """Bytes available on a rank for cached rows: in host memory and in device memory."""

    host_cache_bytes: int = 0
    device_cache_bytes: int = 0


def with_caches(
    source: LocalSource, order: SeedOrder, graph: GraphStore, budgets: CacheBudgets, by: CacheBy
) -> LocalSource:
    """Add caches of rows of other ranks or on disk to a source of batches; its batches stay the same.

    The rows that batches need most often are cached on the device, the next ones on the host. If the columns
    are in memory already, `source` is returned unchanged. Collective if the features are.

    ValueError if `by` is VISITS and the visit probabilities cannot be computed. They require uniform draws,
    seeds that are nodes, and the edges of all partitions.
    """
    features = source.features
    if features is None or not _takes_cache(features):
        return source
    visits = _visits_of_others(source, order, graph, features, by)
    schema = Schema(graph.schema.node_types, (), columns=features.specs)

    def plan(budget_bytes: int) -> CachePlan | None:
        if not budget_bytes:
            return None
        found = CachePlan.of(schema, source.columns.of_nodes, visits, budget_bytes)
        for node_type, ids in found.ids.items():
            visits[node_type][ids] = 0  # the next cache must not hold the same rows again
        return found

    of_device, of_host = plan(budgets.device_cache_bytes), plan(budgets.host_cache_bytes)
    on_device = None
    if of_device is not None:
        on_device = RowCache.filled(of_device, features, schema, source.device)
    return replace(
        source, features=features if of_host is None else features.cached(of_host), on_device=on_device
    )


def _takes_cache(features: FeatureStore) -> bool:
    """Return True if a cache of rows has an effect."""
    if features.is_collective:
        return True
    try:
        features.cached(CachePlan({}, {}, {}, 0))
    except Unsupported:
        return False
    return True


def _visits_of_others(
    source: LocalSource, order: SeedOrder, graph: GraphStore, features: FeatureStore, by: CacheBy
) -> dict[NodeType, Tensor]:
    """Return how often batches need each node, by node type; 0 for nodes in memory of this rank."""
    probabilities = None if by is CacheBy.COUNTS else _probabilities(source, order, features)
    if by is CacheBy.VISITS and probabilities is None:
        raise ValueError(
            "cache by visits: requires the edges of all parts, uniform draws and node seeds; use counts"
        )
    if probabilities is None:
        counts = {t: graph.num_nodes(t) for t in graph.schema.node_types}
        requests = StepRequests(order, 0, range(order.num_batches))
        visits = visit_counts(source.sampler, requests, counts)
    else:
        visits = dict(probabilities)
    for node_type, of_type in visits.items() if features.is_collective else ():
        rows = features.resident_rows(node_type)
        of_type[rows.start : rows.stop] = 0
    return visits


def _probabilities(
    source: LocalSource, order: SeedOrder, features: FeatureStore
) -> Mapping[NodeType, Tensor] | None:
    """Return the probability that this rank's share of a batch contains each node; None if unknown.

    If seeds have affinity, only the seeds stored on this rank count. A rank that stores none gets surplus
    seeds of other ranks, so all seeds count.
    """
    if not isinstance(order.seeds, NodeSeeds):
        return None
    seeds = order.seeds.nodes
    if order.affinity is not None:
        rows = {t: features.local_rows(t) for t in seeds}
        own = {t: ids[(ids >= rows[t].start) & (ids < rows[t].stop)] for t, ids in seeds.items()}
        seeds = own if any(ids.numel() for ids in own.values()) else seeds
    return source.sampler.visits(seeds, -(-order.batch_size // order.world_size))
