"""Samples made on the device with static shapes are those of the CPU, bit for bit."""

from __future__ import annotations

from typing import get_args
from unittest.mock import ANY
from weakref import ref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from khop import DrawKey, Expansion, NeighborSampler, Uniform
from khop.graph.store import csc_graph_from_edges
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.device_batch import DeviceBatch
from khop.sampling.on_device.device_sampler import DeviceSampler
from khop.sampling.on_device.type_nodes import Counts
from khop.sampling.sampler import Trees
from khop.sampling.seeds import Seeds
from support.examples import few
from support.random_graphs import EDGE, as_seeds, graphs, ring
from support.same_samples import assert_same
from support.triton_rows import DEVICE

Batch = tuple[Seeds, DrawKey]
EXPANSIONS = pytest.mark.parametrize("expansion", list(Expansion))


@pytest.mark.core(1)
@EXPANSIONS
@settings(max_examples=few(2))
@given(data=st.data())
def test_batches_are_those_of_the_cpu(expansion: Expansion, data: st.DataObject) -> None:
    """Duplicate seeds, types without seeds, nodes or edges, batches of other sizes one after another."""
    graph = data.draw(graphs())
    by_type = st.fixed_dictionaries(dict.fromkeys(graph.edges, st.sampled_from([-1, 0, 1, 2, 3, 20])))
    sampler = NeighborSampler(
        graph.opened(data.draw(st.sampled_from([torch.int32, torch.int64]))),
        data.draw(st.lists(by_type, max_size=3)),
        rule=Uniform(data.draw(st.booleans())),
        expansion=expansion,
        edge_ids=data.draw(st.booleans()),
        trees=data.draw(st.sampled_from(get_args(Trees))),
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
    of_first = DeviceSampler.measured(sampler, batches[:1], DEVICE)  # the others may exceed its capacities
    for seeds, key in batches[1:]:
        assert_same(of_first.sample(seeds, key), sampler.sample(seeds, key))


@pytest.mark.core(1)
@pytest.mark.parametrize(
    ("expansion", "trees"),
    [
        (Expansion.LAYERED, "merged"),
        (Expansion.SUBGRAPH, "disjoint"),
        pytest.param(Expansion.LAYERED, "disjoint", marks=pytest.mark.long),
        pytest.param(Expansion.SUBGRAPH, "merged", marks=pytest.mark.long),
    ],
)
def test_a_batch_that_does_not_fit_is_drawn_by_the_same_kernels(
    expansion: Expansion, trees: Trees, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Capacities are those of 4 seeds with one in-edge each: 30 seeds have no slots, others many nodes."""
    nodes = torch.arange(500).repeat_interleave(9)
    sources = torch.where(nodes < 10, nodes, (nodes + torch.arange(9).repeat(500)) % 500)
    graph = csc_graph_from_edges({"node": 500}, {EDGE: (sources, nodes)})
    sampler = NeighborSampler(graph, [4, 3], expansion=expansion, trees=trees)
    narrow, key = (as_seeds({"node": [1, 1, 1, 2]}), DrawKey(1)), DrawKey(2)
    device_sampler = DeviceSampler.measured(sampler, [narrow], DEVICE)
    wide = as_seeds({"node": [1, 100, 200, 300]})
    batches = [(wide, key), (as_seeds({"node": list(range(30))}), key)]
    expected = [sampler.sample(*batch) for batch in batches]
    of_narrow = sampler.sample(*narrow)

    def not_called(*_: object) -> None:
        raise AssertionError("the CPU draws")

    monkeypatch.setattr(NeighborSampler, "sample", not_called)
    for overflows, number in enumerate([0, 1, 0, 1], start=1):
        assert_same(device_sampler.sample(*batches[number]), expected[number])
        assert device_sampler.overflows == overflows
        assert_same(device_sampler.sample(*narrow), of_narrow)
    assert device_sampler.overflows == 4


@pytest.mark.core(1)
@EXPANSIONS
def test_more_edges_than_there_is_room_for_are_an_overflow(expansion: Expansion) -> None:
    """Node 1 has one neighbor, and node 0 the same neighbor 40 times: nodes and rows fit."""
    nodes = torch.tensor([0] * 40 + [1, 2])
    graph = csc_graph_from_edges({"node": 3}, {EDGE: (torch.full((42,), 2), nodes)})
    sampler = NeighborSampler(graph, [-1, -1], expansion=expansion, edge_ids=True)
    narrow, wide = ((as_seeds({"node": [node]}), DrawKey(node)) for node in (1, 0))
    device_sampler = DeviceSampler.measured(sampler, [narrow], DEVICE)
    for overflows, batch in enumerate([narrow, wide, narrow]):
        assert_same(device_sampler.sample(*batch), sampler.sample(*batch))
        assert device_sampler.overflows == min(overflows, 1)


def too_large(trees: Trees = "merged") -> tuple[NeighborSampler, DeviceSampler, Batch]:
    """A sampler, the same on the device with room for one seed, and a batch that needs more than twice."""
    sampler = NeighborSampler(ring(500, 9), [4, 3], trees=trees)
    device_sampler = DeviceSampler.measured(sampler, [(as_seeds({"node": [1]}), DrawKey(1))], DEVICE)
    return sampler, device_sampler, (as_seeds({"node": list(range(0, 400, 7))}), DrawKey(2))


@pytest.mark.long
@pytest.mark.parametrize("trees", ["merged", pytest.param("disjoint", marks=pytest.mark.long)])
def test_larger_buffers_are_freed_before_the_next_ones_and_after_the_batch(
    trees: Trees, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler, device_sampler, batch = too_large(trees)
    made, of_sampler = list[ref[DeviceBatch]](), DeviceBatch.__init__

    def noted(device_batch: DeviceBatch, plan: BatchPlan) -> None:
        assert all(earlier() is None for earlier in made)
        made.append(ref(device_batch))
        of_sampler(device_batch, plan)

    monkeypatch.setattr(DeviceBatch, "__init__", noted)
    found = device_sampler.sample(*batch)
    assert len(made) > 1
    assert made[-1]() is None
    sizes = list[tuple[int, int]]()
    found.map(lambda tensor: sizes.append((tensor.nbytes, tensor.untyped_storage().nbytes())) or tensor)
    assert all(used == allocated for used, allocated in sizes)
    assert_same(found, sampler.sample(*batch))


@pytest.mark.long
def test_a_batch_that_exceeds_every_capacity_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _, device_sampler, batch = too_large()
    always = Counts(ANY, [])
    monkeypatch.setattr("khop.sampling.on_device.device_batch.counts_of", lambda values: always)
    with pytest.raises(
        RuntimeError, match=r"a batch of 58 seeds exceeds buffers for all nodes .* please report"
    ):
        device_sampler.sample(*batch)


def test_a_batch_too_large_for_the_card_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    _, device_sampler, batch = too_large()

    def full(device_batch: DeviceBatch, plan: BatchPlan) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nand more")

    monkeypatch.setattr(DeviceBatch, "__init__", full)
    with pytest.raises(torch.OutOfMemoryError, match=r"58 seeds .*: CUDA out of memory.* or fewer neighbors"):
        device_sampler.sample(*batch)
