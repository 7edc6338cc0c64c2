"""Neighbor sampling on the device with static shapes; batches that do not fit are sampled as usual."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from khop.batch import Sample
from khop.draw import DrawKey
from khop.sampling.neighbor import NeighborSampler, check_seeds, check_times
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.capacities import Capacities
from khop.sampling.on_device.cells import counts_of
from khop.sampling.on_device.device_batch import DeviceBatch
from khop.sampling.on_device.views import exact_sample
from khop.sampling.sampler import Seeds


class DeviceSampler:
    """Sampler with the results of a `NeighborSampler`, bit for bit, made on a device.

    Capacities come from a few ordinary batches. `sample` waits for the device once. Not thread-safe: its
    batches share tables and are made in one stream.
    """

    def __init__(self, sampler: NeighborSampler, capacities: Capacities, device: torch.device | str) -> None:
        self.plan = BatchPlan(sampler, capacities, device)
        self.overflows = 0  # batches that did not fit
        self._batch = DeviceBatch(self.plan)

    @classmethod
    def measured(
        cls, sampler: NeighborSampler, warm_up: Sequence[tuple[Seeds, DrawKey]], device: torch.device | str
    ) -> DeviceSampler:
        """Return a sampler with the capacities that a few ordinary batches need."""
        capacities = measured_capacities(sampler, warm_up)
        return cls(sampler, capacities, device)

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        """Sample the seeds' neighborhood. The next call overwrites the tensors of the sample."""
        sampler = self.plan.sampler
        check_seeds(sampler.graph, seeds.nodes)
        check_times(seeds, sampler.rule)
        if self._batch.inputs.fits(seeds):
            self._batch.write(seeds, key)
            self._batch.launch()
            counts = counts_of(self._batch.cells.values)  # the only wait for the device
            if counts.overflowed != self._batch.stamp:
                return exact_sample(self._batch, counts, seeds)
        self.overflows += 1
        return sampler.sample(seeds, key).map(lambda tensor: tensor.to(self.plan.device))


def measured_capacities(sampler: NeighborSampler, warm_up: Sequence[tuple[Seeds, DrawKey]]) -> Capacities:
    """Return the capacities that ordinary batches need, with some slack."""
    most: dict[str, int] = {}
    for seeds, _ in warm_up:
        for t, ids in seeds.nodes.items():
            most[t] = max(most.get(t, 0), ids.numel())
    samples = (sampler.sample(seeds, key) for seeds, key in warm_up)
    return Capacities.measured(samples, most, sampler.graph.schema.node_types, sampler.expansion)
