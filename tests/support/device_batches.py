"""Batches with static shapes on the device that tests run on, of a ring."""

from __future__ import annotations

import torch

from khop import DrawKey, Expansion, NeighborSampler, Seeds
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.device_batch import DeviceBatch
from khop.sampling.on_device.device_sampler import measured_capacities
from khop.sampling.sampler import Trees
from support.random_graphs import as_seeds, ring
from support.triton_rows import DEVICE


def ring_sampler(expansion: Expansion = Expansion.LAYERED, *, trees: Trees = "merged") -> NeighborSampler:
    return NeighborSampler(ring(500, 9), [4, 3, 2], expansion=expansion, trees=trees)


def batch_of(size: int, number: int = 0) -> tuple[Seeds, DrawKey]:
    ids = torch.randint(500, (size,), generator=torch.Generator().manual_seed(number))
    return as_seeds({"node": ids.tolist()}), DrawKey(number)


def device_batch(
    sampler: NeighborSampler, *warm_up: tuple[Seeds, DrawKey], last_stamp: int = 0
) -> DeviceBatch:
    capacities = measured_capacities(sampler, warm_up)
    return DeviceBatch(BatchPlan(sampler, capacities, DEVICE, last_stamp=last_stamp))
