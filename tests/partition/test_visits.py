"""The expected number of visits agrees with batches that were drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop.draw import DrawKey, Purpose
from khop.graph.csc_graph import CscGraph, csc_graph_from_edges
from khop.partition.visits import remote_share, visit_probabilities
from khop.sampling.neighbor import NeighborSampler
from khop.sampling.sampler import Seeds
from small_folders import write_learnable_graph

EDGE = ("node", "to", "node")
FANOUTS = [4, 3]
BATCH = 20


def test_the_expected_visits_are_those_of_batches_that_were_drawn(tmp_path: Path) -> None:
    graph = CscGraph.open(write_learnable_graph(tmp_path / "toy"))
    assert graph.folder is not None
    seeds = graph.folder.split("train")["item"]
    sampler = NeighborSampler(graph, FANOUTS)
    visits, batches = torch.zeros(graph.num_nodes("item")), 0
    for epoch in range(30):
        order = torch.randperm(seeds.numel(), generator=torch.Generator().manual_seed(epoch))
        for start in range(0, seeds.numel() - BATCH, BATCH):
            drawn = {"item": seeds[order[start : start + BATCH]]}
            key = DrawKey.of(1, Purpose.HOP, epoch, start)
            sample = sampler.sample(Seeds(drawn, {"item": torch.arange(BATCH)}), key)
            visits[sample.nodes["item"]] += 1
            batches += 1
    expected = visit_probabilities(graph, {"item": seeds}, BATCH, FANOUTS)["item"]
    assert float(expected.sum()) == pytest.approx(float(visits.sum()) / batches, rel=0.05)
    together = torch.corrcoef(torch.stack([expected.float(), visits / batches]))[0, 1]
    assert float(together) > 0.9


def test_all_neighbours_of_every_seed_are_certain() -> None:
    """0 -> 1 -> 2 and 3 alone: a batch of all seeds, here node 2, needs 2, 1 and 0."""
    graph = csc_graph_from_edges({"node": 4}, {EDGE: (torch.tensor([0, 1]), torch.tensor([1, 2]))})
    seeds = {"node": torch.tensor([2])}
    assert visit_probabilities(graph, seeds, 1, [-1, -1])["node"].tolist() == [1.0, 1.0, 1.0, 0.0]
    assert visit_probabilities(graph, seeds, 1, [-1])["node"].tolist() == [0.0, 1.0, 1.0, 0.0]
    parts = {"node": torch.tensor([0, 1, 1, 0], dtype=torch.int32)}
    assert remote_share(graph, seeds, parts, 2, 1, [-1, -1]) == pytest.approx(1 / 3)
