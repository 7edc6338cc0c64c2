"""The size of a graph that exists, and the nodes of its batches, against batches that were drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from khop.api.partition import partition_graph
from khop.draw import DrawKey, Purpose
from khop.graph.build import write_graph
from khop.graph.inputs import quantize
from khop.graph.store import open_csc_graph
from khop.graph.tables import EdgeTable, NodeTable
from khop.run.planning.graph_size import graph_size
from khop.run.planning.prediction import MEASURED, neighborhood, predict
from khop.run.planning.workload import Cluster, PlannedRun
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
    size = graph_size(path, FANOUTS)
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
    whole, parts = graph_size(path, FANOUTS), graph_size(tmp_path / "parts", FANOUTS)
    assert (parts.nodes, parts.edges) == (whole.nodes, whole.edges)
    assert whole.feature_bytes == parts.feature_bytes == 12
    assert whole.degrees is not None
    assert parts.degrees is not None
    for field in ("share", "degree", "ends"):
        assert getattr(parts.degrees, field) == pytest.approx(getattr(whole.degrees, field))
    assert parts.degrees.drawn(5) == pytest.approx(whole.degrees.drawn(5))


def test_each_edge_type_of_a_hop_draws_its_fanout_and_seeds_are_of_their_type(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(5)
    sizes = {"user": 2000, "item": 20_000}
    nodes = {
        t: NodeTable(n, splits={"train": torch.arange(n)} if t == "user" else {}) for t, n in sizes.items()
    }
    edges = {
        (a, f"r{number}", b): EdgeTable(
            torch.randint(sizes[a], (12 * sizes[b],), generator=generator),
            torch.randint(sizes[b], (12 * sizes[b],), generator=generator),
        )
        for a, b in (("user", "user"), ("item", "user"), ("user", "item"), ("item", "item"))
        for number in range(2)
    }
    path = write_graph(tmp_path / "g", nodes, edges)
    partition_graph(path, tmp_path / "parts", 2, method="hash")
    sampler, counts = NeighborSampler(open_csc_graph(path), FANOUTS), []
    for batch in range(3):
        seeds = torch.randperm(sizes["user"], generator=generator)[:SEEDS]
        drawn = Seeds({"user": seeds}, {"user": torch.arange(SEEDS)})
        found = sampler.sample(drawn, DrawKey.of(0, Purpose.HOP, 0, batch))
        counts.append(sum(ids.numel() for ids in found.nodes.values()))
    for folder in (path, tmp_path / "parts"):
        size = graph_size(folder, FANOUTS)
        predicted = neighborhood(size, FANOUTS, SEEDS, 1, None).rows
        assert predicted == pytest.approx(sum(counts) / 3, rel=0.1)


def test_all_numbers_of_a_row_and_all_bytes_of_an_edge_count(tmp_path: Path) -> None:
    columns = {
        "q": quantize(torch.rand(100, 6)),
        "d": torch.rand(100, 2, dtype=torch.float64),
        "y": torch.arange(100),
    }
    ends, of_edges = torch.randint(100, (2, 400)), {"w": torch.rand(400), "m": torch.rand(400, 3)}
    table = EdgeTable(*ends, columns=of_edges)
    path = write_graph(tmp_path / "g", {NODE: NodeTable(columns=columns)}, {(NODE, "to", NODE): table})
    size = graph_size(path, FANOUTS)
    assert (size.feature_bytes, size.numbers, size.row_bytes) == (6 + 16, 8, 32)
    assert size.edge_bytes == 4 + 12 + 4  # the last are input positions
    few, many = (replace(size, edge_bytes=each) for each in (0, size.edge_bytes))
    run, cluster = PlannedRun(FANOUTS, 10), Cluster(1, 2, 10, 1e-4, 0)
    memory = [predict(each, run, cluster, MEASURED)[0].memory.topology for each in (few, many)]
    assert memory[1] - memory[0] == 400 * 20
