"""Further edge types of a graph in memory: what they bring along, and which are refused.

The expected number of visits agrees with batches that were drawn.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from khop.api.partition import partition_graph
from khop.draw import DrawKey, Purpose
from khop.graph.added_edges import Topology, remote_share, visit_probabilities, with_edges
from khop.graph.folder import open_folder
from khop.graph.inputs import Array, Quantized, quantize
from khop.graph.partitions.parts_folder import map_splits, open_part
from khop.graph.store import csc_graph_from_edges, open_csc_graph
from khop.graph.tables import EdgeTable
from khop.sampling.sampler import NeighborSampler
from khop.sampling.seeds import Seeds
from khop.schema import EdgeType
from khop.testing.graphs import BUYS, LIKE, int64
from support.small_folders import write_learnable_graph
from support.small_typed_folders import write_typed_graph

DAYS = int64([5, 2, 3, 4])
GIVEN = {LIKE: (int64([0, 1, 2, 1]), int64([0, 0, 1, 1]))}


def test_further_edges_come_with_their_columns_and_reverses_and_what_was_there_stays() -> None:
    graph = csc_graph_from_edges({"item": 3}, GIVEN, columns={LIKE: {"day": DAYS}})
    near, back = ("item", "near", "item"), ("item", "near-back", "item")
    distance = np.array([7, 9], np.int16)
    joined = with_edges(
        graph,
        {
            near: EdgeTable(int64([2, 0]), int64([1, 0]), {"distance": distance}, reverse_of=back),
            back: EdgeTable(int64([1, 0]), int64([2, 0])),
        },
    )
    assert joined.schema.edge_types == (LIKE, near, back)
    assert (joined.schema.reverse(near), joined.schema.reverse(back)) == (back, near)
    assert joined.csc(LIKE) is graph.csc(LIKE)
    assert joined.columns[LIKE]["day"] is graph.columns[LIKE]["day"]
    assert joined.csc(near).indices.tolist() == [0, 2]
    assert joined.columns[near]["distance"].tolist() == [9, 7]  # by destination
    assert graph.schema.edge_types == (LIKE,)


@pytest.mark.parametrize(
    ("edge_type", "column", "message"),
    [
        (LIKE, DAYS, "like.*the graph already has it; give the new one another name"),
        (BUYS, DAYS, "no node type 'user'"),
        (("item", "near", "item"), DAYS[:2], "near.*column 'c' has 2 rows, but .* has 4 edges"),
        (("item", "near", "item"), np.array(list("abcd")), "near.*column 'c' is str32: convert it to one of"),
        (("item", "near", "item"), quantize(torch.rand(4, 2)), "near.*column 'c' is quantized: give it as"),
    ],
    ids=["there already", "no node type", "too few", "text", "quantized"],
)
def test_further_edges_that_do_not_fit_are_named(
    edge_type: EdgeType, column: Array | Quantized, message: str
) -> None:
    graph = csc_graph_from_edges({"item": 3}, GIVEN)
    with pytest.raises(ValueError, match=message):
        with_edges(graph, {edge_type: EdgeTable(*GIVEN[LIKE], columns={"c": column})})


@pytest.mark.parametrize(
    ("reverse_of", "message"),
    [
        (("item", "liked", "item"), "near.*reverse_of .*liked.*: no such edge type; there are .*like"),
        (BUYS, "near.*reverse_of .*buys.*: it must lead from destination to source"),
        (
            LIKE,
            r"near.*reverse_of .*like.*: some edges have no reverse in it \(4 and 4 edges\); add them, or",
        ),
    ],
    ids=["not there", "other ends", "other edges"],
)
def test_a_reverse_that_is_none_is_named(reverse_of: EdgeType, message: str) -> None:
    edges = GIVEN | {BUYS: (int64([0]), int64([0]))}
    graph = csc_graph_from_edges({"user": 1, "item": 3}, edges)
    sources, destinations = GIVEN[LIKE]
    near = ("item", "near", "item")
    turned = EdgeTable(destinations, sources, reverse_of=LIKE)
    assert with_edges(graph, {near: turned}).schema.reverse(LIKE) == near
    with pytest.raises(ValueError, match=message):
        with_edges(graph, {near: EdgeTable(sources, destinations, reverse_of=reverse_of)})


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
