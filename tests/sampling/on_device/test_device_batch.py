"""Buffers of a batch on the device: how many kernels fill them.

Views of a batch made on the device: exact ones with one read, padded ones without any.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest
import torch

from khop import Expansion
from khop.kernels.gather import GatheredColumn, gather_columns
from khop.kernels.triton.launch import launch
from khop.sampling.on_device.device_batch import exact_sample, padded_sample
from khop.sampling.on_device.type_nodes import counts_of
from khop.sampling.sampler import Trees
from support.device_batches import batch_of, device_batch, ring_sampler
from support.host_reads import counting
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
    columns, nodes = [GatheredColumn(torch.ones(500, 4, device=DEVICE))], batch.nodes["node"]
    with by_triton():
        gather_columns(columns, nodes.nodes, live=nodes.counts[-1].value)
        gather_columns(columns, batch.inputs.seeds["node"])
    assert started.total() == 21, started


@pytest.mark.long
def test_a_batch_may_be_launched_again_after_others() -> None:
    sampler, batches = ring_sampler(), [batch_of(8, number) for number in range(3)]
    batch = device_batch(sampler, *batches)
    for seeds, key in (*batches, batches[0]):
        batch.write(seeds, key)
        batch.launch()
        assert_same(exact_sample(batch, counts_of(batch.cells.values), seeds), sampler.sample(seeds, key))
    assert batch.stamp == 4


EXPANSIONS = pytest.mark.parametrize("expansion", list(Expansion))


@pytest.mark.core(1)
@EXPANSIONS
@pytest.mark.parametrize("trees", ["merged", "disjoint"])
def test_a_batch_is_made_without_a_read_and_viewed_with_one(expansion: Expansion, trees: Trees) -> None:
    sampler, (seeds, key) = ring_sampler(expansion, trees=trees), batch_of(8)
    batch = device_batch(sampler, (seeds, key))
    with counting() as reads:
        batch.write(seeds, key)
        batch.launch()
        padded_sample(batch)
    assert reads == {}
    with counting() as reads:
        sample = exact_sample(batch, counts_of(batch.cells.values), seeds)
    assert reads.total() == 1, reads
    assert_same(sample, sampler.sample(seeds, key))


@pytest.mark.core(1)
@EXPANSIONS
@pytest.mark.parametrize("trees", ["merged", "disjoint"])
def test_a_padded_sample_is_the_exact_one_with_rows_without_edges_behind_it(
    expansion: Expansion, trees: Trees
) -> None:
    sampler, batches = ring_sampler(expansion, trees=trees), [batch_of(9), batch_of(5, 1)]
    batch = device_batch(sampler, *batches)
    for seeds, key in batches:
        batch.write(seeds, key)
        batch.launch()
        padded, exact = padded_sample(batch), sampler.sample(seeds, key)
        assert padded.overflow.item() != padded.stamp.item()
        count = exact.nodes["node"].numel()
        assert padded.num_nodes["node"].item() == count
        assert torch.equal(padded.sample.nodes["node"][:count].cpu(), exact.nodes["node"])
        seed_index = padded.sample.seed_index["node"].cpu()
        assert torch.equal(seed_index[: seeds.count], exact.seed_index["node"])
        assert (seed_index[seeds.count :] == 0).all()
        for found, block in zip(padded.sample.blocks, exact.blocks, strict=True):
            adjacency = found.adjacency
            edges = block.adjacency.indices.numel()
            assert (found.num_src, found.num_dst) == (adjacency.num_src, adjacency.num_dst)
            assert torch.equal(adjacency.indptr[: block.num_dst + 1].cpu(), block.adjacency.indptr)
            assert (adjacency.indptr[block.num_dst :] == edges).all()
            assert torch.equal(adjacency.indices[:edges].cpu(), block.adjacency.indices)
