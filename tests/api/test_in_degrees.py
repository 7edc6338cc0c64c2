"""In-degrees are the same for a graph in one piece, in parts and on servers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

import khop
from khop.api.in_degrees import in_degrees
from khop.api.partition import partition_graph
from support.in_process import connected
from support.small_typed_folders import BUYS, LIKE, write_typed_graph


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_graph(tmp_path_factory.mktemp("graphs") / "shop")


def split_of(graph: khop.Graph) -> khop.LinkSplit:
    return khop.split_links(graph.only([BUYS, LIKE]), [BUYS], 0.2, 0.1, seed=2)


def test_they_count_the_edges_of_each_destination(folder: Path) -> None:
    split = split_of(khop.open_graph(folder))
    counts = Counter(split.train_links.edges[BUYS][1].tolist())
    found = in_degrees(split.train, BUYS, ())
    assert found.tolist() == [counts[node] for node in range(found.numel())]
    assert found.sum() > 0


def test_parts_in_one_process_have_those_of_the_whole(folder: Path, tmp_path: Path) -> None:
    partition_graph(folder, tmp_path / "parts", 3)
    whole, parts = (split_of(khop.open_graph(path)).test for path in (folder, tmp_path / "parts"))
    original = parts.original_ids(BUYS[2])
    assert original is not None
    assert torch.equal(in_degrees(parts, BUYS, ()), in_degrees(whole, BUYS, ())[original])


def test_on_servers_they_are_counted_in_the_links(folder: Path) -> None:
    graph = khop.open_graph(folder)
    here, there = split_of(graph), split_of(connected(graph))
    for name, lists in (("val", [there.train_links]), ("test", [there.train_links, there.val_links])):
        expected = in_degrees(getattr(here, name), BUYS, ())
        assert torch.equal(in_degrees(getattr(there, name), BUYS, lists), expected)
