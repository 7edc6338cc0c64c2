"""The slots of a hop: sections of edge types that share a source type do not overlap and are aligned."""

from __future__ import annotations

import torch

from khop import NeighborSampler
from khop.draw import DrawKey
from khop.graph.csc_graph import csc_graph_from_edges
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.device_batch import DeviceBatch
from khop.sampling.on_device.device_sampler import measured_capacities
from support.random_graphs import as_seeds
from support.triton_rows import DEVICE

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
