"""One partition draws, by global ids, the edges of its nodes in the whole graph."""

from __future__ import annotations

from pathlib import Path

import torch

from khop.api.partition import partition_graph
from khop.draw import DrawKey, Frontier
from khop.graph.csc_graph import open_csc_graph
from khop.partition.local_partitions import LocalPartitions
from khop.partition.parts_folder import open_parts
from khop.rules.rule import Hop
from khop.rules.uniform import Uniform
from support.small_typed_folders import BUYS, LIKE, write_typed_graph

KEY = DrawKey(5)


def test_draws_are_those_of_the_graph_before_for_own_nodes(tmp_path: Path) -> None:
    """By range, ids stay the same: draws can be compared number by number."""
    whole = open_csc_graph(write_typed_graph(tmp_path / "whole"))
    partition_graph(tmp_path / "whole", tmp_path / "parts", 3, method="range")
    held = LocalPartitions.of(open_parts(tmp_path / "parts"))
    hop = Hop(1, {BUYS: 3, LIKE: 2}, Uniform(), edge_ids=True)
    bounds = held.folder.book.offsets["item"]
    for number, part in enumerate(held.parts):
        items = torch.arange(bounds[number], bounds[number + 1])
        found = part.sample_hop({"item": Frontier(items)}, hop, KEY)
        expected = whole.sample_hop({"item": Frontier(items)}, hop, KEY)
        for edge_type, neighbors in expected.items():
            assert torch.equal(found[edge_type].nodes, neighbors.nodes)
            edges = found[edge_type].edges
            assert edges is not None
            assert neighbors.edges is not None
            assert torch.equal(edges, neighbors.edges)


def test_removed_edges_are_not_drawn_and_others_keep_their_positions(tmp_path: Path) -> None:
    partition_graph(write_typed_graph(tmp_path / "whole"), tmp_path / "parts", 2, method="range")
    part = LocalPartitions.of(open_parts(tmp_path / "parts")).parts[1]
    kept = torch.arange(0, part.csc(BUYS).num_edges, 3)
    fewer = part.keeping({BUYS: kept})
    assert fewer.csc(BUYS).num_edges == kept.numel()
    positions = torch.arange(kept.numel())
    for name in ("weight", "time"):
        assert torch.equal(fewer.column(BUYS, name, positions), part.column(BUYS, name, kept))
    first = part.folder.manifest.part
    assert first is not None
    items = torch.arange(*first.offsets["item"][1:3])
    drawn = fewer.sample_hop({"item": Frontier(items)}, Hop(1, {BUYS: -1}, Uniform(), edge_ids=True), KEY)
    edges = drawn[BUYS].edges
    assert edges is not None
    assert torch.equal(edges - part.first_edges[BUYS], kept)
    again = fewer.keeping({BUYS: positions[::2]})
    assert torch.equal(again.csc(BUYS).indices, fewer.csc(BUYS).indices[::2])
