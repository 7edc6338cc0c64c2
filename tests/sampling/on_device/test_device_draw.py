"""A draw writes into its section alone; its edges become CSR rows.

The slots of a hop: sections of edge types that share a source type do not overlap and are aligned.
"""

from __future__ import annotations

import torch

from khop import NeighborSampler
from khop.draw import DrawKey
from khop.graph.store import csc_graph_from_edges
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.device_batch import DeviceBatch
from khop.sampling.on_device.device_draw import csr_buffers, sums_of
from khop.sampling.on_device.device_sampler import measured_capacities
from khop.sampling.on_device.inputs import EMPTY
from khop.sampling.on_device.type_nodes import counts_of
from support.device_batches import batch_of, device_batch, ring_sampler
from support.random_graphs import as_seeds
from support.triton_rows import DEVICE


def test_slots_outside_the_section_are_not_written() -> None:
    batch = device_batch(ring_sampler(), batch_of(8))
    seeds, key = batch_of(8)
    batch.write(seeds, key)
    batch.launch()
    for hop in batch.hops:
        (draw,) = hop.draws.values()
        section = draw.section
        whole = section.slots.ids
        assert section.ids.data_ptr() == whole[section.first :].data_ptr()
        assert (whole[section.first + section.count :] == EMPTY).all()
        drawn = int(draw.drawn.slots.counts.sum())
        assert int((section.ids != EMPTY).sum()) == drawn > 0
    counts = counts_of(batch.cells.values)
    for output, hop in zip(batch.outputs, batch.hops, strict=True):
        ((edge_type, csr),) = output.items()
        assert counts[csr.edges] == int(hop.draws[edge_type].drawn.slots.counts.sum())
        assert int(csr.buffers.indptr[-1]) == counts[csr.edges]


def test_new_buffers_have_no_edges() -> None:
    buffers = csr_buffers(3, 5, DEVICE, edge_ids=False)
    assert buffers.indptr.tolist() == [0, 0, 0, 0]
    assert (buffers.indices.numel(), buffers.edge_ids) == (5, None)
    assert csr_buffers(3, 5, DEVICE, edge_ids=True).edge_ids is not None
    assert sums_of(torch.zeros(3000, dtype=torch.int32, device=DEVICE)).numel() >= 1


BUYS, SEES, LIKE = ("user", "buys", "item"), ("user", "sees", "item"), ("item", "like", "item")
NOTHING = ("tag", "on", "item")


def test_sections_have_room_for_every_draw() -> None:
    users, items = torch.arange(30), torch.arange(30) % 10
    none = torch.empty(0, dtype=torch.int64)
    edges = {BUYS: (users, items), SEES: (users, items), LIKE: (items, items), NOTHING: (none, none)}
    graph = csc_graph_from_edges({"user": 30, "item": 10, "tag": 1}, edges)
    sampler = NeighborSampler(graph, [{BUYS: 3, SEES: 2, LIKE: 0, NOTHING: 4}])
    seeds = as_seeds({"item": [1, 2, 3, 4, 5]})
    capacities = measured_capacities(sampler, [(seeds, DrawKey(1))])
    (hop,) = DeviceBatch(BatchPlan(sampler, capacities, DEVICE)).hops
    assert hop.draws.keys() == {BUYS, SEES}  # the others have a fanout of 0, or no edges
    rows = capacities.rows[0]["item"]
    sections = sorted((draw.section.first, draw.section.count) for draw in hop.draws.values())
    assert sorted(count for _, count in sections) == [2 * rows, 3 * rows]
    assert all(first % 16 == 0 for first, _ in sections)
    (first, count), (second, _) = sections
    assert first + count <= second
    assert hop.slots["user"].ids.numel() >= second + sections[1][1]
