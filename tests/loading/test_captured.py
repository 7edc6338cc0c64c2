"""Recorded launches make batch after batch, with other seeds and keys."""

from __future__ import annotations

import pytest
import torch

from khop import DrawKey, Expansion, NeighborSampler, Seeds
from khop.sampling.neighbor import Trees
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.cells import counts_of
from khop.sampling.on_device.device_batch import DeviceBatch
from khop.sampling.on_device.device_sampler import measured_capacities
from khop.sampling.on_device.views import exact_sample
from support.random_graphs import as_seeds, ring
from support.recorders import recorder
from support.same_samples import assert_same
from support.triton_rows import DEVICE


def batch_of(size: int, number: int) -> tuple[Seeds, DrawKey]:
    ids = torch.randint(200, (size,), generator=torch.Generator().manual_seed(number))
    return as_seeds({"node": ids.tolist()}), DrawKey(number)


@pytest.mark.parametrize("trees", ["merged", "disjoint"])
@pytest.mark.parametrize("expansion", list(Expansion))
def test_a_recording_makes_the_batches_of_other_seeds_and_keys(expansion: Expansion, trees: Trees) -> None:
    sampler = NeighborSampler(ring(200, 9), [4, 3], expansion=expansion, trees=trees)
    batches = [batch_of(size, number) for number, size in enumerate([8, 5, 8, 0, 1])]
    plan = BatchPlan(sampler, measured_capacities(sampler, batches), DEVICE)
    made = [DeviceBatch(plan) for _ in range(2)]  # two in turn, one table
    recordings = [recorder().record(batch.launch) for batch in made]
    for number, (seeds, key) in enumerate(batches):
        own = made[number % 2]
        own.write(seeds, key)
        recordings[number % 2].replay()
        counts = counts_of(own.cells.values)
        assert counts.overflowed != own.stamp
        assert_same(exact_sample(own, counts, seeds), sampler.sample(seeds, key))
