"""Samples made on the device with static shapes are those of the CPU, bit for bit."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from khop import DrawKey, Expansion, NeighborSampler, Output, Seeds, Uniform
from khop.graph.csc_graph import csc_graph_from_edges
from khop.kernels.triton.launch import launch
from khop.kernels.triton.node_table import STAMP_LIMIT
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.cells import counts_of
from khop.sampling.on_device.device_batch import DeviceBatch
from khop.sampling.on_device.device_sampler import DeviceSampler, measured_capacities
from khop.sampling.on_device.views import exact_sample, padded_sample
from support.host_reads import counting
from support.random_graphs import EDGE, as_seeds, graphs, ring
from support.same_samples import assert_same
from support.triton_rows import DEVICE

EXPANSIONS = pytest.mark.parametrize("expansion", list(Expansion))


@EXPANSIONS
@settings(max_examples=12)
@given(data=st.data())
def test_batches_are_those_of_the_cpu(expansion: Expansion, data: st.DataObject) -> None:
    """Duplicate seeds, types without seeds, nodes or edges, batches of other sizes one after another."""
    graph = data.draw(graphs())
    by_type = st.fixed_dictionaries(dict.fromkeys(graph.edges, st.sampled_from([0, 1, 2, 3, 20])))
    sampler = NeighborSampler(
        graph.opened(data.draw(st.sampled_from([torch.int32, torch.int64]))),
        data.draw(st.lists(by_type, max_size=3)),
        rule=Uniform(data.draw(st.booleans())),
        expansion=expansion,
        edge_ids=data.draw(st.booleans()),
        disjoint=data.draw(st.booleans()),
    )
    of_type = {
        t: st.lists(st.integers(0, n - 1), max_size=5) if n else st.just([]) for t, n in graph.counts.items()
    }
    batches = [
        (as_seeds(data.draw(st.fixed_dictionaries(of_type))), DrawKey(data.draw(st.integers(0, 2**64 - 1))))
        for _ in range(3)
    ]
    device_sampler = DeviceSampler.measured(sampler, batches, DEVICE)
    for seeds, key in batches[::-1]:
        assert_same(device_sampler.sample(seeds, key), sampler.sample(seeds, key))
    assert device_sampler.overflows == 0


def ring_sampler(expansion: Expansion = Expansion.LAYERED, *, disjoint: bool = False) -> NeighborSampler:
    return NeighborSampler(ring(500, 9), [4, 3, 2], expansion=expansion, disjoint=disjoint)


def batch_of(size: int, number: int = 0) -> tuple[Seeds, DrawKey]:
    ids = torch.randint(500, (size,), generator=torch.Generator().manual_seed(number))
    return as_seeds({"node": ids.tolist()}), DrawKey(number)


def device_batch(
    sampler: NeighborSampler, *warm_up: tuple[Seeds, DrawKey], last_stamp: int = 0
) -> DeviceBatch:
    capacities = measured_capacities(sampler, warm_up)
    return DeviceBatch(BatchPlan(sampler, capacities, DEVICE, last_stamp=last_stamp))


@EXPANSIONS
@pytest.mark.parametrize("disjoint", [False, True], ids=["shared", "disjoint"])
def test_a_batch_is_made_without_a_read_and_viewed_with_one(expansion: Expansion, disjoint: bool) -> None:
    sampler, (seeds, key) = ring_sampler(expansion, disjoint=disjoint), batch_of(8)
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


def test_a_batch_of_three_hops_of_one_type_takes_19_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is 24 with the gathers of columns."""
    batch, started = device_batch(ring_sampler(), batch_of(8)), Counter[str]()

    def counted(kernel: Any, *operands: object, **constants: object) -> None:  # noqa: ANN401
        started[kernel.__name__] += 1
        launch(kernel, *operands, **constants)

    for name, module in list(sys.modules.items()):
        if name.startswith("khop.kernels.triton.") and getattr(module, "launch", None) is launch:
            monkeypatch.setattr(module, "launch", counted)
    batch.launch()
    assert started.total() == 19, started


@pytest.mark.parametrize("disjoint", [False, True], ids=["shared", "disjoint"])
@EXPANSIONS
def test_a_batch_that_does_not_fit_is_made_as_usual(expansion: Expansion, disjoint: bool) -> None:
    """Capacities are those of 4 seeds with one in-edge each: 30 seeds have no slots, others many nodes."""
    nodes = torch.arange(500).repeat_interleave(9)
    sources = torch.where(nodes < 10, nodes, (nodes + torch.arange(9).repeat(500)) % 500)
    graph = csc_graph_from_edges({"node": 500}, {EDGE: (sources, nodes)})
    sampler = NeighborSampler(graph, [4, 3, 2], expansion=expansion, disjoint=disjoint)
    narrow, key = (as_seeds({"node": [1, 1, 1, 2]}), DrawKey(1)), DrawKey(2)
    device_sampler = DeviceSampler.measured(sampler, [narrow], DEVICE)
    wide = as_seeds({"node": [1, 100, 200, 300]})
    for overflows, seeds in enumerate([wide, as_seeds({"node": list(range(30))})] * 2, start=1):
        assert_same(device_sampler.sample(seeds, key), sampler.sample(seeds, key))
        assert device_sampler.overflows == overflows
        assert_same(device_sampler.sample(*narrow), sampler.sample(*narrow))
    assert device_sampler.overflows == 4


@EXPANSIONS
def test_stamps_that_start_again_mistake_nothing(expansion: Expansion) -> None:
    sampler, batches = ring_sampler(expansion), [batch_of(8, number) for number in range(4)]
    batch = device_batch(sampler, *batches, last_stamp=STAMP_LIMIT - 2)
    stamps = []
    for seeds, key in batches:
        batch.write(seeds, key)
        batch.launch()
        found = exact_sample(batch, counts_of(batch.cells.values), seeds)
        assert_same(found, sampler.sample(seeds, key))
        stamps.append(batch.stamp)
    assert stamps == [STAMP_LIMIT - 1, STAMP_LIMIT, 1, 2]


@EXPANSIONS
@pytest.mark.parametrize("disjoint", [False, True], ids=["shared", "disjoint"])
def test_a_padded_sample_is_the_exact_one_with_rows_without_edges_behind_it(
    expansion: Expansion, disjoint: bool
) -> None:
    sampler, batches = ring_sampler(expansion, disjoint=disjoint), [batch_of(9), batch_of(5, 1)]
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


def test_samplers_without_static_shapes_are_refused() -> None:
    measured = measured_capacities(ring_sampler(), [batch_of(8)])
    every = NeighborSampler(ring(500, 9), [4, -1, 2])
    with pytest.raises(ValueError, match="fanout -1: all neighbors have no static shape"):
        BatchPlan(every, measured, DEVICE)
    induced = NeighborSampler(ring(9, 2), [2], expansion=Expansion.SUBGRAPH, output=Output.INDUCED)
    with pytest.raises(ValueError, match="output induced: has no static shapes"):
        BatchPlan(induced, measured, DEVICE)
