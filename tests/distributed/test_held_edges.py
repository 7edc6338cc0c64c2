"""Edges that a process holds have the columns of their parts and of all nodes."""

from __future__ import annotations

from pathlib import Path

import torch

from khop.distributed.held_edges import HeldEdges
from khop.partition.local_partitions import LocalPartitions
from khop.partition.parts_folder import open_parts
from khop.sampling.link_split import Counted
from support.small_typed_folders import BUYS, LIKE


def test_columns_are_those_of_the_held_parts(typed_parts: Path) -> None:
    folder, some = open_parts(typed_parts), open_parts(typed_parts, [1])
    edges = HeldEdges(LocalPartitions.of(some))
    (held,) = edges.edge_column(BUYS, "time") or ()
    assert torch.equal(held, folder.parts[1].columns()[BUYS]["time"])
    assert edges.edge_column(LIKE, "nope") is None
    assert edges.node_column("item", "nope") is None
    assert edges.num_nodes("item") == folder.num_nodes("item")
    assert edges.original_ids["item"].numel() == edges.num_nodes("item")


def test_thinned_edges_have_their_own_columns(typed_parts: Path) -> None:
    held = LocalPartitions.of(open_parts(typed_parts, [0]))
    (every,) = HeldEdges(held).edge_column(BUYS, "time") or ()
    kept = torch.arange(0, every.numel(), 3)
    (found,) = HeldEdges(held.keeping({BUYS: (kept,)})).edge_column(BUYS, "time") or ()
    assert torch.equal(found, every[kept])


def test_counts_are_summed_as_told(typed_parts: Path) -> None:
    held, counts = LocalPartitions.of(open_parts(typed_parts, [0])), torch.tensor([3, 4])
    assert HeldEdges(held).total(counts, Counted(BUYS)).tolist() == [3, 4]
    assert HeldEdges(held, lambda own, of: own * 2).total(counts, Counted(BUYS)).tolist() == [6, 8]
