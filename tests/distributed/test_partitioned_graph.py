"""The shares of owners make up a hop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop.distributed.partitioned_graph import HopShares
from khop.draw import DrawKey, Frontier
from khop.partition.local_partitions import LocalPartitions
from khop.partition.parts_folder import PartsFolder, open_parts
from khop.rules.rule import Hop
from khop.rules.uniform import Uniform
from support.small_typed_folders import LIKE

HOP, KEY = Hop(1, {LIKE: 3}, Uniform()), DrawKey(4)


def shares_of(folder: PartsFolder, held: LocalPartitions, nodes: torch.Tensor) -> HopShares:
    counts = {LIKE: folder.num_edges(LIKE)}
    return HopShares.of({"item": Frontier(nodes)}, HOP, KEY, held, counts, folder.book.offsets)


def test_neighbors_of_all_shares_are_those_of_the_frontier(typed_parts: Path) -> None:
    folder = open_parts(typed_parts)
    held = LocalPartitions.of(folder)
    nodes = torch.tensor([150, 3, 77, 3, 199, 0])
    shares = shares_of(folder, held, nodes)
    counts = [shares.counts(owner)["item"] for owner in range(folder.book.num_parts)]
    assert sum(counts) == nodes.numel()
    drawn = [held.sample_hop(shares.frontier(owner), HOP, KEY) for owner in range(len(counts))]
    found, expected = shares.joined(drawn)[LIKE], held.sample_hop({"item": Frontier(nodes)}, HOP, KEY)[LIKE]
    assert torch.equal(found.offsets, expected.offsets)
    assert torch.equal(found.nodes, expected.nodes)


def test_a_node_of_no_part_and_a_type_that_there_is_not_are_refused(typed_parts: Path) -> None:
    folder = open_parts(typed_parts)
    held = LocalPartitions.of(folder)
    with pytest.raises(ValueError, match=r"frontier node 200: not in \[0, 200\)"):
        shares_of(folder, held, torch.tensor([200]))
    hop = Hop(1, {("item", "nope", "item"): 3}, Uniform())
    with pytest.raises(ValueError, match="nope"):
        HopShares.of({"item": Frontier(torch.tensor([0]))}, hop, KEY, held, {}, folder.book.offsets)
