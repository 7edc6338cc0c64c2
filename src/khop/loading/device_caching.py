"""Caches on a GPU for rows of columns that stay in host memory."""

from __future__ import annotations

import torch
from torch import Tensor

from khop.features.cache_plan import CachePlan
from khop.features.row_cache import RowCache
from khop.features.store import FeatureStore
from khop.graph.csc_graph import CscGraph
from khop.kernels.gather import Copies
from khop.loading.columns import ColumnChoice
from khop.loading.device_columns import CopiesByColumn
from khop.loading.placed_stores import PlacedStores
from khop.loading.source import StepRequests
from khop.loading.visit_counts import visit_counts
from khop.sampling.sampler import Sampler
from khop.sampling.seeds import NodeSeeds, SeedOrder
from khop.schema import NodeType

Visits = dict[NodeType, Tensor]


def visits_of(sampler: Sampler, order: SeedOrder, graph: CscGraph) -> Visits:
    """Return how often batches need each node: the probability, else the count in the first epoch."""
    if isinstance(order.seeds, NodeSeeds):
        known = sampler.visits(order.seeds.nodes, -(-order.batch_size // order.world_size))
        if known is not None:
            return dict(known)
    counts = {t: graph.num_nodes(t) for t in graph.schema.node_types}
    return visit_counts(sampler, StepRequests(order, 0, range(order.num_batches)), counts)


def pinned_copies(
    stores: PlacedStores, graph: CscGraph, choice: ColumnChoice, visits: Visits
) -> CopiesByColumn:
    """Copy the rows that are needed most of each pinned column to the GPU, within its cache's size."""
    found: dict[tuple[NodeType, str], Copies] = {}
    names = {name for of_type in choice.of_nodes.values() for name in of_type}
    for name, budget in stores.plan.caches.items():
        if name not in names or not stores.reads(name):
            continue
        types = {t: (name,) for t, of_type in choice.of_nodes.items() if name in of_type}
        plan = CachePlan.of(graph.schema, types, visits, budget)
        for node_type, ids in plan.ids.items():
            found[node_type, name] = _copies(stores.columns[node_type][name], ids, stores.device)
    return found


def rows_of_host(
    stores: PlacedStores, graph: CscGraph, choice: ColumnChoice, features: FeatureStore, visits: Visits
) -> RowCache | None:
    """Copy the rows that are needed most of the columns that the CPU gathers, within their caches' sizes.

    There is one cache for all of them: a row of it has every column of its type, also columns without a cache
    of their own. None if no rows are cached.
    """
    names = {name for of_type in choice.of_nodes.values() for name in of_type}
    budget = sum(size for name, size in stores.plan.caches.items() if name in names)
    if not budget:
        return None
    plan = CachePlan.of(graph.schema, choice.of_nodes, visits, budget)
    return RowCache.filled(plan, features, graph.schema, stores.device)


def _copies(table: Tensor, ids: Tensor, device: torch.device) -> Copies:
    slots = torch.full((table.shape[0],), -1, dtype=torch.int32)
    slots[ids] = torch.arange(ids.numel(), dtype=torch.int32)
    return Copies(slots.to(device), table.index_select(0, ids.to(device)))
