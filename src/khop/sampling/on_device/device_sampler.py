"""Sampling on the device with static shapes; batches that do not fit are sampled as usual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from khop.batch import Sample
from khop.draw import DrawKey
from khop.sampling.neighbor import check_seeds, check_times
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.capacities import Capacities, Type
from khop.sampling.on_device.cells import counts_of
from khop.sampling.on_device.device_batch import DeviceBatch
from khop.sampling.on_device.views import exact_sample
from khop.sampling.sampler import Sampler, Seeds


class DeviceSampler:
    """Sampler with the results of a `NeighborSampler` or `LinkSampler`, bit for bit, made on a device.

    Capacities come from a few ordinary batches. `sample` waits for the device once. Negatives are drawn on
    the CPU. Not thread-safe: its batches share tables and are made in one stream.
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
        if self._batch.inputs.fits(planted.seeds, planted.excluded):
            self._batch.write(planted.seeds, key, planted.excluded)
            self._batch.launch()
            counts = counts_of(self._batch.cells.values)  # the only wait for the device
            if counts.overflowed != self._batch.stamp:
                links = {t: rows.map(self._moved) for t, rows in planted.links.items()}
                return replace(exact_sample(self._batch, counts, planted.seeds), links=links)
        self.overflows += 1
        return self._sampler.sample(seeds, key).map(self._moved)

    def _moved(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.plan.device)


def measured_capacities(sampler: Sampler, warm_up: Sequence[tuple[Seeds, DrawKey]]) -> Capacities:
    """Return the capacities that ordinary batches need, with some slack."""
    in_kernels = sampler.for_kernels()
    planted = [in_kernels.planted(seeds) for seeds, _ in warm_up]
    most = _largest([{t: ids.numel() for t, ids in batch.seeds.nodes.items()} for batch in planted])
    excluded = _largest([{t: ends.shape[1] for t, ends in batch.excluded.items()} for batch in planted])
    samples = (sampler.sample(seeds, key) for seeds, key in warm_up)
    node_types = sampler.graph.schema.node_types
    capacities = Capacities.measured(samples, most, node_types, in_kernels.neighbors.expansion)
    return replace(capacities, excluded=excluded)


def _largest(counts: Sequence[Mapping[Type, int]]) -> dict[Type, int]:
    largest: dict[Type, int] = {}
    for of_batch in counts:
        for type_, count in of_batch.items():
            largest[type_] = max(largest.get(type_, 0), count)
    return largest
