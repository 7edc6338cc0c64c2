"""GPU caches for rows of columns in host memory: visit counts, cached rows, hit counts, and gathers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from khop.batch import Sample
from khop.graph.features.row_cache import RowCache
from khop.graph.features.store import CachePlan, FeatureStore, Rows
from khop.graph.features.table import FeatureTable
from khop.graph.store import CscGraph
from khop.kernels.gather import Copies, GatheredColumn, Shards, gather_columns
from khop.loading.columns import ColumnChoice, Names
from khop.loading.device.placed_stores import PlacedStores
from khop.loading.source import BatchRequest, CachedRows, Drawn, StepRequests
from khop.sampling.sampler import Sampler
from khop.sampling.seeds import NodeSeeds, SeedOrder
from khop.schema import NodeType, Schema


def rows_in_cache(cache: RowCache, choice: ColumnChoice, sample: Sample) -> dict[NodeType, CachedRows]:
    """Return the rows of a sample that need not be gathered, for each type with cached rows.

    If seed columns are requested, the rows of seeds are gathered anyway: seed columns are selected on the
    host.
    """
    found = {}
    for node_type, names in choice.of_nodes.items():
        if cache.covers(node_type, names):
            slots = cache.find(node_type, sample.nodes[node_type])
            if node_type in choice.of_seeds and sample.seed_index[node_type].numel():
                slots[: int(sample.seed_index[node_type].max()) + 1] = -1
            rows = (slots >= 0).nonzero().view(-1)
            widened = choice.as_float32.get(node_type, frozenset())
            found[node_type] = CachedRows(
                node_type,
                cache.rows,
                Rows(slots[rows], names, as_float32=widened),
                rows,
                (slots < 0).nonzero().view(-1),
            )
    return found


NEEDED, CACHED = "needed_rows", "device_cache_rows"
Counted = Mapping[tuple[NodeType, str], Copies]


def nodes_in_cache(copies: Counted) -> dict[tuple[NodeType, str], Tensor]:
    """Return on the host for each pinned column with copies, bool (nodes), the rows that have one."""
    return {name: (of_column.slots >= 0).cpu() for name, of_column in copies.items()}


def counts_of_host(
    nodes: Mapping[NodeType, Tensor],
    rows: Mapping[NodeType, CachedRows],
    copied: Mapping[tuple[NodeType, str], Tensor],
) -> dict[str, float]:
    """Return the counts of a batch on the host.

    `rows` are cached rows of columns that the CPU gathers, `copied` is from `nodes_in_cache`.
    """
    needed = sum(nodes[t].numel() for t in rows) + sum(nodes[t].numel() for t, _ in copied)
    found = [of_type.rows.numel() for of_type in rows.values()]
    found += [int(is_copied[nodes[t]].sum()) for (t, _), is_copied in copied.items()]
    return {NEEDED: needed, CACHED: sum(found)}


def counts_in_cache(nodes: Mapping[NodeType, Tensor], copies: Counted) -> dict[str, float]:
    """Return the counts of a batch on the device, or none without a cache. The host waits for them."""
    if not copies:
        return {}
    needed = sum(nodes[node_type].numel() for node_type, _ in copies)
    cached = sum(int((of.slots[nodes[node_type]] >= 0).sum()) for (node_type, _), of in copies.items())
    return {NEEDED: needed, CACHED: cached}


class SlotCounts:
    """Counts of batches in pinned columns with copies on a device, made there: nothing waits.

    `write` counts the rows of a batch in the current stream; read `counts` once this work has ended.
    """

    def __init__(self, copies: Counted, device: torch.device) -> None:
        self._copies = copies
        self._found = torch.zeros(2, dtype=torch.int64, device=device)
        self._seen = torch.zeros(2, dtype=torch.int64, pin_memory=device.type != "cpu")

    def write(self, nodes: Mapping[NodeType, Tensor], live: Mapping[NodeType, Tensor]) -> None:
        """Count the first `live` nodes of each type, and those with a copy; `live` is int32 (1)."""
        if not self._copies:
            return
        self._found.zero_()
        for (node_type, _), copies in self._copies.items():
            ids = nodes[node_type]
            is_live = torch.arange(ids.numel(), device=ids.device) < live[node_type]
            has_copy = is_live & (copies.slots.index_select(0, ids) >= 0)
            self._found += torch.stack([is_live.sum(), has_copy.sum()])
        self._seen.copy_(self._found, non_blocking=True)

    def counts(self) -> dict[str, float]:
        """Return the counts of the last batch; none without a cache."""
        if not self._copies:
            return {}
        needed, cached = self._seen.tolist()
        return {NEEDED: needed, CACHED: cached}


CopiesByColumn = Mapping[tuple[NodeType, str], Copies]


@dataclass(frozen=True, eq=False)
class DeviceColumns:
    """The columns of a loader that kernels of a device read, some rows of them from copies."""

    stores: PlacedStores
    schema: Schema
    choice: ColumnChoice  # of these columns alone
    copies: CopiesByColumn

    @cached_property
    def in_cache(self) -> dict[tuple[NodeType, str], Tensor]:
        """On the host for each column with copies, bool (nodes), the rows that have one."""
        return nodes_in_cache(self.copies)

    @cached_property
    def _features(self) -> FeatureTable:
        return self.stores.features(self.schema)  # scales are copied to the device once

    def add(self, drawn: Drawn) -> Drawn:
        """Gather the columns of a sample on the device, in the current stream. The host does not wait."""
        columns = {t: dict(of_type) for t, of_type in drawn.columns.items()}
        seed_columns = {t: dict(of_type) for t, of_type in drawn.seed_columns.items()}
        for node_type, names in self.choice.of_nodes.items():
            columns.setdefault(node_type, {}).update(
                self._gathered(node_type, names, drawn.sample.nodes[node_type])
            )
        for node_type, names in self.choice.of_seeds.items():
            seed_columns.setdefault(node_type, {}).update(
                self._gathered(node_type, names, drawn.seed_nodes[node_type])
            )
        return replace(drawn, columns=columns, seed_columns=seed_columns)

    def _gathered(self, node_type: NodeType, names: Names, ids: Tensor) -> dict[str, Tensor]:
        widened = self.choice.as_float32.get(node_type, frozenset())
        rows = Rows(ids, names, as_float32=widened)
        columns = [self._column(node_type, name, rows) for name in names]
        return dict(zip(names, gather_columns(columns, ids), strict=True))

    def _column(self, node_type: NodeType, name: str, rows: Rows) -> GatheredColumn:
        column = self._features.column(node_type, name, rows)
        return replace(column, copies=self.copies.get((node_type, name)))


def split_choice(choice: ColumnChoice, stores: PlacedStores) -> tuple[ColumnChoice, ColumnChoice]:
    """Divide a choice into the columns that the CPU gathers, and those that kernels of the device read."""
    parts = []
    for on_device in (False, True):
        of_nodes, of_seeds = (
            {t: tuple(name for name in names if stores.reads(name) is on_device) for t, names in of.items()}
            for of in (choice.of_nodes, choice.of_seeds)
        )
        parts.append(
            ColumnChoice(
                {t: names for t, names in of_nodes.items() if names},
                {} if on_device else choice.of_edges,
                {t: names for t, names in of_seeds.items() if names},
                choice.as_float32,
            )
        )
    return parts[0], parts[1]


def visit_counts(
    sampler: Sampler, requests: Iterable[BatchRequest], num_nodes: Mapping[NodeType, int]
) -> dict[NodeType, Tensor]:
    """Return int32 (nodes) of each type: the number of requested batches that contain each node.

    The batches equal the batches of the run, so the counts are exact for steps that the run reaches. If
    sampling is collective, so is this function: all ranks must count the same steps.
    """
    counts = {node_type: torch.zeros(count, dtype=torch.int32) for node_type, count in num_nodes.items()}
    for request in requests:
        for node_type, ids in sampler.sample(request.seeds(), request.key).nodes.items():
            counts[node_type][ids] += 1  # once per batch, even if the node is in several trees
    return counts


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
    """Cache the most needed rows of the columns that the CPU gathers, within the sizes of their caches.

    The columns share one cache. Its rows have every column of their type, also those without a requested
    cache. None if no rows are cached.
    """
    names = {name for of_type in choice.of_nodes.values() for name in of_type}
    budget = sum(size for name, size in stores.plan.caches.items() if name in names)
    if not budget:
        return None
    plan = CachePlan.of(graph.schema, choice.of_nodes, visits, budget)
    return RowCache.filled(plan, features, graph.schema, stores.device)


def _copies(table: Tensor | Shards, ids: Tensor, device: torch.device) -> Copies:
    slots = torch.full((table.shape[0],), -1, dtype=torch.int32)
    slots[ids] = torch.arange(ids.numel(), dtype=torch.int32)
    return Copies(slots.to(device), gather_columns([GatheredColumn(table)], ids.to(device))[0])
