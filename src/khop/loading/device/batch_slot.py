"""Batch with static shapes, its columns and links, made on the GPU by recorded launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch
from torch import Tensor

from khop.batch import Batch, LinkRows
from khop.draw import DrawKey
from khop.graph.features.store import Rows
from khop.graph.features.table import FeatureTable
from khop.kernels.gather import Copies, GatheredColumn, gather_columns
from khop.kernels.memory import empty_rows
from khop.kernels.philox import signed
from khop.loading.columns import NOTHING_DEFERRED, ColumnChoice, DeferredColumns
from khop.loading.device.device_caching import SlotCounts, counts_in_cache
from khop.loading.device.streams import Recorder
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.device_batch import (
    DeviceBatch,
    drawn_with_larger_buffers,
    exact_sample,
    padded_sample,
)
from khop.sampling.on_device.type_nodes import counts_of
from khop.sampling.seeds import Seeds
from khop.schema import EdgeType, NodeType

LinksByType = Mapping[EdgeType, LinkRows]


class LinkSlots:
    """Buffers of the links of one batch. Links behind the last one have row 0 and weigh 0.

    `like` are links of an ordinary batch: batches have the same fields and as many negatives per link.
    """

    def __init__(self, capacities: Mapping[EdgeType, int], like: LinksByType, device: torch.device) -> None:
        self._capacities = {t: capacities[t] for t in like}
        is_cpu = device.type == "cpu"

        def pinned(tensor: Tensor) -> Tensor:
            return tensor if is_cpu else tensor.pin_memory()

        def zeros(tensor: Tensor) -> Tensor:
            return torch.zeros_like(tensor, device=device)

        self._host = {t: padded_links(rows, capacities[t]) for t, rows in like.items()}
        self._host = {t: rows.map(pinned) for t, rows in self._host.items()}
        self.rows = {t: rows.map(zeros) for t, rows in self._host.items()}
        count = sum(rows.source.numel() for rows in self.rows.values())
        self._host_weights = pinned(torch.zeros(count, dtype=torch.float64))
        self.weights = zeros(self._host_weights)  # float64 (pairs of all types)

    def fits(self, links: LinksByType) -> bool:
        """Return True if there is a place for every link."""
        return all(rows.num_links <= self._capacities[t] for t, rows in links.items())

    def write(self, links: LinksByType, weight: float) -> None:
        """Copy the links of a batch to the device, behind the work of the current stream.

        Each loss weighs `weight`. The copy before this one must have ended: it reads the same memory.
        """
        weights = []
        for edge_type, capacity in self._capacities.items():
            rows = links[edge_type]
            _copy(padded_links(rows, capacity), self._host[edge_type], self.rows[edge_type])
            each = torch.full(rows.source.shape, weight, dtype=torch.float64)
            weights.append(_of_pairs(each, rows, capacity))
        torch.cat(weights, out=self._host_weights)
        self.weights.copy_(self._host_weights, non_blocking=True)


def padded_links(rows: LinkRows, capacity: int) -> LinkRows:
    """Return links with room for `capacity` of them, in the order of `LinkRows`; the others have zeros."""

    def of_links(values: Tensor | None) -> Tensor | None:
        return None if values is None else _padded(values, capacity)

    def of_pairs(values: Tensor | None) -> Tensor | None:
        return None if values is None else _of_pairs(values, rows, capacity)

    return LinkRows(
        _of_pairs(rows.source, rows, capacity),
        _of_pairs(rows.destination, rows, capacity),
        _padded(rows.positions, capacity),
        of_pairs(rows.labels),
        of_links(rows.negatives),
        rows.pairs_per_link,
        of_links(rows.source_negatives),
        of_pairs(rows.relations),
        of_links(rows.times),
    )


def _of_pairs(values: Tensor, rows: LinkRows, capacity: int) -> Tensor:
    """Pad values of pairs: those of the links, then those of the negatives of each link."""
    links, per_link = rows.num_links, rows.pairs_per_link - 1
    of_negatives = _padded(values[links:], capacity * per_link)
    return torch.cat([_padded(values[:links], capacity), of_negatives])


def _padded(values: Tensor, count: int) -> Tensor:
    padded = values.new_zeros(count, *values.shape[1:])
    padded[: values.shape[0]] = values
    return padded


def _copy(links: LinkRows, host: LinkRows, device: LinkRows) -> None:
    """Copy the tensors of links to pinned memory, and from there to the device."""
    for name, values in vars(links).items():
        if isinstance(values, Tensor):
            getattr(host, name).copy_(values)
            getattr(device, name).copy_(getattr(host, name), non_blocking=True)


@dataclass(frozen=True)
class StepInput:
    """Seeds of one training step on this rank, and the keys of its draws."""

    seeds: Seeds  # nodes only: those of links are their ends and the ends of their negatives
    key: DrawKey
    weight: float  # of each loss, of a seed or of a pair: the loss of the step is the weighted sum
    dropout_key: DrawKey = DrawKey(0)
    links: LinksByType = field(default_factory=dict)
    excluded: Mapping[EdgeType, Tensor] = field(default_factory=dict)  # ends of edges that carry no message

    @property
    def num_seeds(self) -> int:
        """Number of seeds: of links, if there are any."""
        return sum(rows.num_links for rows in self.links.values()) if self.links else self.seeds.count

    @property
    def num_losses(self) -> int:
        """Number of losses: one per seed, or per pair of links."""
        return sum(rows.source.numel() for rows in self.links.values()) if self.links else self.seeds.count


class BatchSlot:
    """Buffers of one batch in flight: its sample, its columns, and a weight for each loss.

    Shapes are the capacities of the plan. Rows behind the last node have no edges and are 0; seeds behind the
    last one weigh 0. The features are in device memory or in pinned host memory; `copies` are rows of pinned
    columns that are cached on the device. `links` are links of an ordinary batch, if seeds are links. The
    model reads rows of `deferred` columns itself.
    """

    def __init__(
        self,
        plan: BatchPlan,
        features: FeatureTable,
        choice: ColumnChoice,
        record: Recorder,
        copies: Mapping[NodeType, Mapping[str, Copies]] = MappingProxyType({}),
        links: LinksByType = MappingProxyType({}),
        deferred: DeferredColumns = NOTHING_DEFERRED,
    ) -> None:
        if choice.of_edges:
            raise ValueError(
                f"columns of {list(choice.of_edges)}: edge columns have no static shapes; leave them out, or "
                "train without captured steps"
            )
        self._plan = plan
        self._made = DeviceBatch(plan)
        self._features, self._choice, self._copies = features, choice, copies
        self._by_column = {(t, name): of for t, of_type in copies.items() for name, of in of_type.items()}
        self._counts = SlotCounts(self._by_column, plan.device)
        padded = padded_sample(self._made)
        self._padded = padded
        seeds, device = self._made.inputs.seeds, plan.device
        self._of_nodes = {
            t: self._columns(t, names, padded.sample.nodes[t]) for t, names in choice.of_nodes.items()
        }
        self._of_seeds = {t: self._columns(t, names, seeds[t]) for t, names in choice.of_seeds.items()}
        self.dropout_key = torch.zeros(1, dtype=torch.int64, device=device)
        self._weight = torch.zeros(1, dtype=torch.float64, device=device)
        self._links = LinkSlots(plan.capacities.links, links, device) if links else None
        count = sum(ids.numel() for ids in seeds.values())
        self.weights = torch.zeros(count, dtype=torch.float64, device=device)
        if self._links is not None:
            self.weights = self._links.weights
        self._stamps = torch.zeros(3, dtype=torch.int64, device=device)
        self._seen = torch.zeros(3, dtype=torch.int64, pin_memory=device.type != "cpu")
        self._deferred = deferred
        batch = Batch(
            replace(padded.sample, links={} if self._links is None else self._links.rows),
            dict(seeds),
            {t: _outputs(columns) for t, columns in self._of_nodes.items()},
            {t: _outputs(columns) for t, columns in self._of_seeds.items()},
            epoch=0,
            step=0,
            num_global_seeds=self.weights.numel(),
        )
        self.batch = deferred.added_to_padded(batch, padded.num_nodes)
        self._replay = record(self._launch)

    def fits(self, given: StepInput) -> bool:
        """Return True if there is a place for every seed, link and excluded edge."""
        has_links = self._links is None or self._links.fits(given.links)
        return has_links and self._made.inputs.fits(given.seeds, given.excluded)

    def make(self, given: StepInput) -> None:
        """Issue all work of a batch to the current stream; nothing waits.

        The work of the slot's last batch must have ended on the device, or be earlier in the stream; its
        `overflowed` must have been read.
        """
        self._made.write(given.seeds, given.key, given.excluded)
        if self._links is not None:
            self._links.write(given.links, given.weight)
        self._weight.fill_(given.weight)
        self.dropout_key.fill_(signed(given.dropout_key.value))
        self._replay()

    def overflowed(self) -> bool:
        """Return True if the batch exceeded a capacity. Call it when the work of `make` has ended.

        RuntimeError if the device has made two batches of the same stamp: the second would lack nodes.
        """
        overflow, stamp, last = self._seen.tolist()
        if stamp <= last:
            raise RuntimeError(
                f"batch {stamp} was made after batch {last}: wait for the work of a slot before it is "
                "written again"
            )
        return bool(overflow == stamp)

    def traffic(self) -> dict[str, float]:
        """Return the counts of the batch in cached columns, once `overflowed` may be called."""
        return self._counts.counts()

    def copied(self, seeds: Seeds) -> Batch:
        """Return a copy of the batch with exact shapes, once `overflowed` may be called.

        The current stream makes it, and the host waits for the counts there.
        """
        sample = exact_sample(self._made, counts_of(self._made.cells.values.cpu()), seeds)
        batch = Batch(
            sample,
            {t: sample.nodes[t][index] for t, index in sample.seed_index.items()},
            {t: _first(columns, sample.nodes[t].numel()) for t, columns in self._of_nodes.items()},
            {t: _first(columns, seeds.nodes[t].numel()) for t, columns in self._of_seeds.items()},
            epoch=0,
            step=0,
            num_global_seeds=seeds.count,
        )
        return batch.map(torch.clone)

    def exact(self, given: StepInput) -> Batch:
        """Return the batch of any seeds with exact shapes and counts, which the current stream makes.

        The stream comes after all work of the slots of the plan, and the host waits for it.
        """
        device, choice = self._plan.device, self._choice
        links = {t: rows.map(lambda tensor: tensor.to(device)) for t, rows in given.links.items()}
        drawn = drawn_with_larger_buffers(self._plan, given.seeds, given.key, given.excluded)
        sample = replace(drawn, links=links)
        seeds = {t: ids.to(device) for t, ids in given.seeds.nodes.items()}
        nodes = {t: self._columns(t, names, sample.nodes[t]) for t, names in choice.of_nodes.items()}
        of_seeds = {t: self._columns(t, names, seeds[t]) for t, names in choice.of_seeds.items()}
        for ids, columns in [(sample.nodes[t], nodes[t]) for t in nodes] + [
            (seeds[t], of_seeds[t]) for t in of_seeds
        ]:
            gather_columns(list(columns.values()), ids)
        batch = Batch(
            sample,
            seeds,
            {t: _outputs(columns) for t, columns in nodes.items()},
            {t: _outputs(columns) for t, columns in of_seeds.items()},
            epoch=0,
            step=0,
            num_global_seeds=given.num_seeds,
            traffic=counts_in_cache(sample.nodes, self._by_column),
        )
        return self._deferred.added_to(batch)

    def _columns(self, node_type: NodeType, names: tuple[str, ...], ids: Tensor) -> dict[str, GatheredColumn]:
        """Return the columns to gather for ids, with memory for the rows."""
        wanted = Rows(ids, names, as_float32=self._choice.as_float32.get(node_type, frozenset()))
        return {name: self._column(node_type, name, wanted) for name in names}

    def _column(self, node_type: NodeType, name: str, wanted: Rows) -> GatheredColumn:
        column = self._features.column(node_type, name, wanted)
        table = column.pieces[0]  # those of a sharded table are alike
        dtype, shape = torch.float32 if column.as_float32 else table.dtype, tuple(table.shape[1:])
        out = empty_rows(wanted.ids.numel(), shape, dtype, self._plan.device)
        return replace(column, out=out, copies=self._copies.get(node_type, {}).get(name))

    def _launch(self) -> None:
        self._made.launch()
        self._padded.update()
        for node_type, columns in self._of_nodes.items():
            live = self._padded.num_nodes[node_type]
            gather_columns(list(columns.values()), self._padded.sample.nodes[node_type], live=live)
        self._counts.write(self._padded.sample.nodes, self._padded.num_nodes)
        seeds = self._made.inputs.seeds
        for node_type, columns in self._of_seeds.items():
            gather_columns(list(columns.values()), seeds[node_type])  # rows of empty places, -1, are 0
        if self._links is None:
            torch.mul(torch.cat(list(seeds.values())) >= 0, self._weight, out=self.weights)
        torch.cat([self._padded.overflow, self._padded.stamp, self._plan.last_made], out=self._stamps)
        self._plan.last_made.copy_(self._padded.stamp)
        self._seen.copy_(self._stamps, non_blocking=True)


def _first(columns: dict[str, GatheredColumn], count: int) -> dict[str, Tensor]:
    return {name: out[:count] for name, out in _outputs(columns).items()}


def _outputs(columns: dict[str, GatheredColumn]) -> dict[str, Tensor]:
    outputs = {name: column.out for name, column in columns.items()}
    return {name: out for name, out in outputs.items() if out is not None}
