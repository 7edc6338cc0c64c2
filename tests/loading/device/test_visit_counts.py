"""Visits that are counted are those of the run's own batches."""

from __future__ import annotations

from pathlib import Path

import torch

from khop.api.loader import Loader
from khop.api.open_graph import open_graph
from khop.loading.device.device_caching import visit_counts
from khop.loading.source import Position, request_of
from khop.sampling.sampler import NeighborSampler
from khop.sampling.seeds import NodeSeeds, SeedOrder
from support.small_folders import write_learnable_graph


def test_a_node_counts_once_in_every_batch_that_has_it(tmp_path: Path) -> None:
    graph = open_graph(write_learnable_graph(tmp_path / "toy"))
    seeds = graph.split("train")
    sampler = NeighborSampler(graph, [4, 3], trees="disjoint")  # a node is in many trees of a batch
    order = SeedOrder(NodeSeeds(seeds), 50, shuffle=True, run_seed=3)
    positions = [Position(epoch, step) for epoch in (0, 2) for step in range(3)]
    requests = [request_of(order, position.epoch, position.step) for position in positions]
    counts = visit_counts(sampler, requests, {"item": graph.num_nodes("item")})
    loader = Loader(sampler, seeds, 50, shuffle=True, seed=3)
    expected = torch.zeros(graph.num_nodes("item"), dtype=torch.int32)
    for position in positions:
        expected[loader.batch(position.epoch, position.step).input_nodes.unique()] += 1
    assert torch.equal(counts["item"], expected)
    assert int(expected.max()) > 1
