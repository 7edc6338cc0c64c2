"""The expected number of visits agrees with batches that were drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop.api.partition import partition_graph
from khop.draw import DrawKey, Purpose
from khop.graph.csc_graph import csc_graph_from_edges, open_csc_graph
from khop.graph.folder import open_folder
from khop.graph.visits import Topology, remote_share, visit_probabilities
from khop.partition.part_files import map_splits, open_part
from khop.sampling.neighbor import NeighborSampler
from khop.sampling.sampler import Seeds
from support.small_folders import write_learnable_graph
from support.small_typed_folders import BUYS, write_typed_graph

EDGE = ("node", "to", "node")
FANOUTS = [4, 3]
BATCH = 20


def test_the_expected_visits_are_those_of_batches_that_were_drawn(tmp_path: Path) -> None:
    graph = open_csc_graph(write_learnable_graph(tmp_path / "toy"))
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
    expected = visit_probabilities(Topology.of(graph), {"item": seeds}, BATCH, FANOUTS)["item"]
    assert float(expected.sum()) == pytest.approx(float(visits.sum()) / batches, rel=0.05)
    together = torch.corrcoef(torch.stack([expected.float(), visits / batches]))[0, 1]
    assert float(together) > 0.9


def test_the_parts_of_a_graph_together_say_what_the_graph_says(tmp_path: Path) -> None:
    whole = open_folder(write_typed_graph(tmp_path / "shop"))
    book = partition_graph(whole.path, tmp_path / "parts", 3)
    parts = [open_part(tmp_path / "parts", book, part) for part in range(3)]
    fanouts = [{t: (3 if t == BUYS else 1) for t in whole.schema.edge_types}, 2]
    seeds = map_splits(tmp_path / "parts", book)["train"]
    found = visit_probabilities(Topology.of_parts(parts), seeds, BATCH, fanouts)
    expected = visit_probabilities(Topology.of(open_csc_graph(whole)), whole.split("train"), BATCH, fanouts)
    for node_type, chances in expected.items():
        originals = torch.cat([part.columns()[node_type]["original_id"] for part in parts])
        assert torch.allclose(found[node_type], chances[originals])
    assert min(float(expected[t].max()) for t in ("user", "item")) > 0


def test_all_neighbors_of_every_seed_are_certain() -> None:
    """0 -> 1 -> 2 and 3 alone: a batch of all seeds, here node 2, needs 2, 1 and 0."""
    graph = csc_graph_from_edges({"node": 4}, {EDGE: (torch.tensor([0, 1]), torch.tensor([1, 2]))})
    topology, seeds = Topology.of(graph), {"node": torch.tensor([2])}
    assert visit_probabilities(topology, seeds, 1, [-1, -1])["node"].tolist() == [1.0, 1.0, 1.0, 0.0]
    assert visit_probabilities(topology, seeds, 1, [-1])["node"].tolist() == [0.0, 1.0, 1.0, 0.0]
    parts = {"node": torch.tensor([0, 1, 1, 0], dtype=torch.int32)}
    assert remote_share(topology, seeds, parts, 2, 1, [-1, -1]) == pytest.approx(1 / 3)
