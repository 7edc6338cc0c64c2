"""Sampler on a GPU with static shapes. Batches that exceed a capacity use larger shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from khop.batch import Sample
from khop.draw import DrawKey
from khop.graph.rule import reads_times
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.capacities import Capacities, Type, room
from khop.sampling.on_device.device_batch import DeviceBatch, drawn_with_larger_buffers, exact_sample
from khop.sampling.on_device.type_nodes import counts_of
from khop.sampling.sampler import NeighborSampler, Sampler, check_seeds, check_times
from khop.sampling.seeds import Seeds
from khop.schema import EdgeType, NodeType


class DeviceSampler:
    """Sampler with the results of a `NeighborSampler` or `LinkSampler`, bit for bit, made on a device.

    Capacities come from a few ordinary batches. `sample` waits for the device once if the batch fits.
    Negatives are drawn on the CPU. Not thread-safe: its batches share tables and are made in one stream.
    """

    def __init__(self, sampler: Sampler, capacities: Capacities, device: torch.device | str) -> None:
        self._sampler = sampler
        self._in_kernels = sampler.for_kernels()
        self.plan = BatchPlan(self._in_kernels.neighbors, capacities, device)
        self.overflows = 0  # batches that did not fit
        self._batch = DeviceBatch(self.plan)

    @classmethod
    def measured(
        cls, sampler: Sampler, warm_up: Sequence[tuple[Seeds, DrawKey]], device: torch.device | str
    ) -> DeviceSampler:
        """Return a sampler with the capacities that a few ordinary batches need."""
        capacities = measured_capacities(sampler, warm_up)
        return cls(sampler, capacities, device)

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        """Sample the seeds' neighborhood. The next call overwrites the tensors of the sample."""
        planted = self._in_kernels.planted(seeds)
        check_seeds(self._sampler.graph, planted.seeds.nodes)
        check_times(planted.seeds, self.plan.rule)
        links = {t: rows.map(self._moved) for t, rows in planted.links.items()}
        if self._batch.inputs.fits(planted.seeds, planted.excluded):
            self._batch.write(planted.seeds, key, planted.excluded)
            self._batch.launch()
            counts = counts_of(self._batch.cells.values)  # the only wait for the device
            if counts.overflowed != self._batch.stamp:
                return replace(exact_sample(self._batch, counts, planted.seeds), links=links)
        self.overflows += 1
        return replace(
            drawn_with_larger_buffers(self.plan, planted.seeds, key, planted.excluded), links=links
        )

    def _moved(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.plan.device)


def measured_capacities(sampler: Sampler, warm_up: Sequence[tuple[Seeds, DrawKey]]) -> Capacities:
    """Return the capacities for batches such as these."""
    in_kernels = sampler.for_kernels()
    planted = [in_kernels.planted(seeds) for seeds, _ in warm_up]
    most = _largest([{t: ids.numel() for t, ids in batch.seeds.nodes.items()} for batch in planted])
    excluded = _largest([{t: ends.shape[1] for t, ends in batch.excluded.items()} for batch in planted])
    links = _largest([{t: rows.num_links for t, rows in batch.links.items()} for batch in planted])
    if links:  # the number of different ends varies, and with several types that of the links of each
        most = _room([{t: ids.numel() for t, ids in batch.seeds.nodes.items()} for batch in planted])
    if len(links) > 1:
        links = _room([{t: rows.num_links for t, rows in batch.links.items()} for batch in planted])
    samples = [sampler.sample(seeds, key) for seeds, key in warm_up]
    edges = _edges_in_all(in_kernels.neighbors, samples, excluded)
    node_types = sampler.graph.schema.node_types
    capacities = Capacities.measured(samples, most, node_types, in_kernels.neighbors.expansion, edges)
    return replace(capacities, excluded=excluded, links=links)


def _edges_in_all(
    sampler: NeighborSampler, samples: Sequence[Sample], excluded: Mapping[EdgeType, int]
) -> list[dict[EdgeType, list[int]]]:
    """Return the edges of the rows of each hop in each sample, by edge types with a fanout of -1.

    Edges that a batch leaves out have a place as well.
    """
    graph, found = sampler.graph.in_one_piece("sampling on the device"), []
    for hop in sampler.hops:
        every = [t for t, fanout in hop.fanouts.items() if fanout < 0]
        degrees = {t: graph.csc(t).indptr.diff() for t in every}
        if reads_times(sampler.rule):  # a time limit leaves few of the edges of a node
            counts = [{t: _drawn(s, hop.number, t) + excluded.get(t, 0) for t in every} for s in samples]
        else:
            counts = [
                {t: int(of_type[_expanded(s, hop.number, t[2])].sum()) for t, of_type in degrees.items()}
                for s in samples
            ]
        found.append({t: [of_sample[t] for of_sample in counts] for t in every})
    return found


def _expanded(sample: Sample, hop: int, node_type: NodeType) -> Tensor:
    """Return the nodes that a hop expands."""
    last = sample.blocks[-hop].dst_counts[node_type]
    is_joined = sample.subgraph is not None and hop > 1
    first = sample.blocks[1 - hop].dst_counts[node_type] if is_joined else 0
    return sample.nodes[node_type][first:last]


def _drawn(sample: Sample, hop: int, edge_type: EdgeType) -> int:
    """Return the number of edges that a hop drew."""
    if sample.subgraph is not None:
        assert sample.subgraph.edges_per_hop is not None  # only other outputs lack it
        return sample.subgraph.edges_per_hop[edge_type][hop - 1]
    return sample.blocks[-hop].adjacencies[edge_type].indices.numel()


def _room(counts: Sequence[Mapping[Type, int]]) -> dict[Type, int]:
    """Return the room for numbers of some batches, of which each may lack some types."""
    types = dict.fromkeys(type_ for of_batch in counts for type_ in of_batch)
    return {t: room([of_batch.get(t, 0) for of_batch in counts]) for t in types}


def _largest(counts: Sequence[Mapping[Type, int]]) -> dict[Type, int]:
    largest: dict[Type, int] = {}
    for of_batch in counts:
        for type_, count in of_batch.items():
            largest[type_] = max(largest.get(type_, 0), count)
    return largest
