"""A batch reaches its device, through pinned memory where that device is a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from khop import Loader, NeighborSampler
from khop.loading.transfer import place, stage
from typed_shop import shop, tensors

GRAPH = shop()
LOADER = Loader(
    NeighborSampler(GRAPH, [2]), {"item": torch.arange(9)}, 4, columns=["x"], seed_columns=["price"]
)


def test_on_the_cpu_a_batch_stays_what_it_is() -> None:
    batch = LOADER.batch(0, 0)
    cpu = torch.device("cpu")
    assert place(stage(batch, cpu), cpu) is batch


def test_a_batch_goes_to_another_device_whole() -> None:
    meta = torch.device("meta")
    assert all(tensor.is_meta for tensor in tensors(place(stage(LOADER.batch(0, 0), meta), meta)))


def test_a_batch_for_a_gpu_is_pinned_first(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[int] = []

    def pin(tensor: Tensor) -> Tensor:
        pinned.append(tensor.data_ptr())
        return tensor

    monkeypatch.setattr(Tensor, "pin_memory", pin)
    batch = LOADER.batch(0, 0)
    stage(batch, torch.device("cuda", 0))
    assert pinned == [tensor.data_ptr() for tensor in tensors(batch)]


def test_a_loader_gives_its_batches_on_its_device() -> None:
    loader = Loader(NeighborSampler(GRAPH, [2]), {"item": torch.arange(9)}, 4, columns=["x"], device="meta")
    batches = list(loader.epoch(0))
    assert len(batches) == 3
    assert all(tensor.is_meta for batch in batches for tensor in tensors(batch))
