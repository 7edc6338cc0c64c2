"""Plans of batches with static shapes: stamps that start again, and samplers that have none."""

from __future__ import annotations

from weakref import ref

import pytest
import torch

from khop import Expansion, NeighborSampler, Output, Rule, TopK, Uniform, Weighted
from khop.graph.store import csc_graph_from_edges
from khop.kernels.triton.node_table import STAMP_LIMIT
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.device_batch import DeviceBatch, exact_sample
from khop.sampling.on_device.device_sampler import measured_capacities
from khop.sampling.on_device.type_nodes import counts_of
from support.device_batches import batch_of, device_batch, ring_sampler
from support.random_graphs import EDGE, ring
from support.same_samples import assert_same
from support.triton_rows import DEVICE


@pytest.mark.long
@pytest.mark.parametrize(
    "expansion", [Expansion.SUBGRAPH, pytest.param(Expansion.LAYERED, marks=pytest.mark.long)]
)
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


@pytest.mark.long
def test_trees_of_larger_batches_are_not_mistaken_when_stamps_start_again() -> None:
    """Tables of trees depend on the capacities. Those of a plan with others are cleared, too."""
    sampler, batches = ring_sampler(trees="disjoint"), [batch_of(8, number) for number in range(3)]
    first = device_batch(sampler, *batches, last_stamp=STAMP_LIMIT - 1)
    larger = DeviceBatch(first.plan.resized(first.plan.capacities.doubled(first.plan.limits)))
    stamps = (STAMP_LIMIT, 1, 2)
    for batch, stamp, (seeds, key) in zip((larger, first, larger), stamps, batches, strict=True):
        batch.write(seeds, key)
        batch.launch()
        assert batch.stamp == stamp
        found = exact_sample(batch, counts_of(batch.cells.values), seeds)
        assert_same(found, sampler.sample(seeds, key))


def test_tables_of_trees_are_freed_with_their_plan() -> None:
    sampler = ring_sampler(trees="disjoint")
    plan = BatchPlan(sampler, measured_capacities(sampler, [batch_of(8)]), DEVICE)
    table = ref(plan.tables["node"])
    plan = plan.resized(plan.capacities.doubled(plan.limits))
    assert table() is None
    assert plan.next_stamp() == 1


def test_samplers_without_static_shapes_are_refused() -> None:
    measured = measured_capacities(ring_sampler(), [batch_of(8)])
    graph = csc_graph_from_edges(
        {"node": 2}, {EDGE: torch.eye(2).long()}, columns={EDGE: {"w": torch.ones(2)}}
    )
    every = NeighborSampler(graph, [2, -1], rule=Weighted("w", replacement=True))
    with pytest.raises(ValueError, match=r"with fanouts \[-1\] is not supported on a GPU"):
        BatchPlan(every, measured, DEVICE)
    induced = NeighborSampler(ring(9, 2), [2], expansion=Expansion.SUBGRAPH, output=Output.INDUCED)
    with pytest.raises(ValueError, match="output induced: has no static shapes"):
        BatchPlan(induced, measured, DEVICE)


@pytest.mark.parametrize(
    ("rule", "most"),
    [(Weighted("w"), 128), (Uniform(), 8192), (Weighted("w", replacement=True), None), (TopK("w"), None)],
    ids=str,
)
def test_more_picks_than_a_kernel_has_are_refused_before_the_first_batch(
    rule: Rule, most: int | None
) -> None:
    graph = csc_graph_from_edges(
        {"node": 2}, {EDGE: torch.eye(2).long()}, columns={EDGE: {"w": torch.ones(2)}}
    )
    measured = measured_capacities(ring_sampler(), [batch_of(8)])
    for fanout in (128, 129, 8192, 8193):
        sampler = NeighborSampler(graph, [2, fanout], rule=rule)
        if most is None or fanout <= most:
            BatchPlan(sampler, measured, DEVICE)
            continue
        with pytest.raises(ValueError, match=rf'fanout {fanout} .* up to {most} .* topology="host"'):
            BatchPlan(sampler, measured, DEVICE)
