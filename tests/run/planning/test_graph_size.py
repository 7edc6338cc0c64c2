"""The size of a graph that exists, and the nodes of its batches, against batches that were drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop.api.partition import partition_graph
from khop.draw import DrawKey, Purpose
from khop.graph.build import write_graph
from khop.graph.store import open_csc_graph
from khop.graph.tables import EdgeTable, NodeTable
from khop.run.planning.graph_size import graph_size
from khop.run.planning.prediction import neighborhood
from khop.sampling.sampler import NeighborSampler
from khop.sampling.seeds import Seeds
from run.planning.test_neighborhood import write_clustered_graph

NODES, DEGREE, SEEDS, BATCHES, FANOUTS = 20_000, 12, 60, 10, (6, 5)
NODE = "node"


@pytest.mark.parametrize("shape", ["uniform", "grown", "directed"])
def test_with_counted_degrees_the_nodes_of_a_batch_are_within_a_tenth(tmp_path: Path, shape: str) -> None:
    """Edges without communities. Directed: few nodes have almost all out-edges, others the in-edges."""
    generator = torch.Generator().manual_seed(5)
    ends = torch.randint(NODES, (2, NODES * DEGREE), generator=generator)
    if shape == "grown":
        weights = torch.rand(NODES, generator=generator, dtype=torch.float64) ** (-1 / 2.3) - 1
        ends = torch.multinomial(weights, 2 * ends.shape[1], True, generator=generator).view(2, -1)
    if shape == "directed":
        ends[0] = ends[0] ** 3 // NODES**2
    path = write_graph(tmp_path / "g", {NODE: NodeTable(NODES)}, {(NODE, "to", NODE): EdgeTable(*ends)})
    size = graph_size(path)
    assert (size.nodes, size.edges, size.feature_bytes) == (NODES, ends.shape[1], 0)
    sampler = NeighborSampler(open_csc_graph(path), FANOUTS)
    counts = []
    for batch in range(BATCHES):
        seeds = torch.randperm(NODES, generator=generator)[:SEEDS]
        drawn = Seeds({NODE: seeds}, {NODE: torch.arange(SEEDS)})
        counts.append(sampler.sample(drawn, DrawKey.of(0, Purpose.HOP, 0, batch)).nodes[NODE].numel())
    predicted = neighborhood(size, FANOUTS, SEEDS, 1, None).rows
    assert predicted == pytest.approx(sum(counts) / BATCHES, rel=0.1)


def test_a_partitioned_graph_has_the_degrees_of_the_whole(tmp_path: Path) -> None:
    path = write_clustered_graph(tmp_path / "g", width=3)
    partition_graph(path, tmp_path / "parts", 3, method="hash")
    whole, parts = graph_size(path), graph_size(tmp_path / "parts")
    assert (parts.nodes, parts.edges) == (whole.nodes, whole.edges)
    assert whole.feature_bytes == parts.feature_bytes == 12
    assert whole.degrees is not None
    assert parts.degrees is not None
    for field in ("share", "degree", "ends"):
        assert getattr(parts.degrees, field) == pytest.approx(getattr(whole.degrees, field))
