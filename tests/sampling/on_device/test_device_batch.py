"""Buffers of a batch on the device: how many kernels fill them."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest
import torch

from khop.kernels.gather import Column, gather_columns
from khop.kernels.triton.launch import launch
from khop.sampling.on_device.cells import counts_of
from khop.sampling.on_device.views import exact_sample
from support.device_batches import batch_of, device_batch, ring_sampler
from support.same_samples import assert_same
from support.triton_rows import DEVICE
from support.triton_segments import by_triton


def test_a_batch_of_three_hops_takes_21_launches_of_kernels_with_a_column_and_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit is 24. Kernels of khop are counted: copies and fills of torch are not."""
    batch, started = device_batch(ring_sampler(), batch_of(8)), Counter[str]()

    def counted(kernel: Any, *operands: object, **constants: object) -> None:  # noqa: ANN401
        started[kernel.__name__] += 1
        launch(kernel, *operands, **constants)

    for name, module in list(sys.modules.items()):
        if name.startswith("khop.kernels.triton.") and getattr(module, "launch", None) is launch:
            monkeypatch.setattr(module, "launch", counted)
    batch.launch()
    assert started.total() == 19, started
    columns, nodes = [Column(torch.ones(500, 4, device=DEVICE))], batch.nodes["node"]
    with by_triton():
        gather_columns(columns, nodes.nodes, live=nodes.counts[-1].value)
        gather_columns(columns, batch.inputs.seeds["node"])
    assert started.total() == 21, started


def test_a_batch_may_be_launched_again_after_others() -> None:
    sampler, batches = ring_sampler(), [batch_of(8, number) for number in range(3)]
    batch = device_batch(sampler, *batches)
    for seeds, key in (*batches, batches[0]):
        batch.write(seeds, key)
        batch.launch()
        assert_same(exact_sample(batch, counts_of(batch.cells.values), seeds), sampler.sample(seeds, key))
    assert batch.stamp == 4
