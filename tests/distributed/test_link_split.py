"""A split of links over ranks, here over one: that of the same parts in one process.

Edges that a process holds have the columns of their parts and of all nodes.
"""

from __future__ import annotations

from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

import khop
from khop.distributed.link_split import HeldEdges, LinkPlaces, held_edges, split_over_ranks
from khop.draw import DrawKey, Purpose
from khop.graph.partitions.local_partitions import (
    LocalPartitionFeatures,
    LocalPartitionGraph,
    LocalPartitions,
)
from khop.graph.partitions.parts_folder import open_parts
from khop.sampling.links.link_split import CountedLinks, LinkColumns, Shares
from support.one_rank import one_rank_graph
from support.small_typed_folders import BUYS, LIKE

SEED = 3


def test_links_and_messages_are_those_of_one_process(typed_parts: Path) -> None:
    folder, graph = open_parts(typed_parts), one_rank_graph(typed_parts)
    whole = khop.Graph(LocalPartitionGraph(folder), LocalPartitionFeatures(folder), folder)
    expected = khop.split_links(whole, [BUYS], val=0.1, test=30, negatives=2, label="weight", seed=SEED)
    key = DrawKey.of(SEED, Purpose.SPLIT)
    parts = split_over_ranks(graph, [BUYS], Shares(0.1, 30), key, LinkColumns(2, "weight"))
    lists = (expected.train_links, expected.val_links, expected.test_links)
    for part, links in zip(parts, lists, strict=True):
        assert dict(part.links.counts) == dict(links.counts)
        numbers = torch.arange(links.counts[BUYS])
        found, own = part.links.rows(BUYS, numbers), links.rows(BUYS, numbers)
        assert torch.equal(found.edges, own.edges)
        assert found.labels is not None
        assert own.labels is not None
        assert torch.equal(found.labels, own.labels)
        assert (found.negatives is None) is (own.negatives is None)
        if found.negatives is not None and own.negatives is not None:
            assert torch.equal(found.negatives, own.negatives)


def test_a_part_without_links_is_empty_as_in_one_process(typed_parts: Path) -> None:
    folder, graph = open_parts(typed_parts), one_rank_graph(typed_parts)
    whole = khop.Graph(LocalPartitionGraph(folder), LocalPartitionFeatures(folder), folder)
    expected = khop.split_links(whole, [BUYS], val=0.1, test=0, negatives=2, seed=SEED).test_links
    key = DrawKey.of(SEED, Purpose.SPLIT)
    found = split_over_ranks(graph, [BUYS], Shares(0.1, 0), key, LinkColumns(2))[2].links
    assert dict(found.counts) == dict(expected.counts) == {BUYS: 0}
    rows = found.rows(BUYS, torch.arange(0))
    assert rows.negatives is not None
    assert rows.negatives.shape == (0, 2)
    assert found.digest() == expected.digest()


def test_edges_are_those_of_the_parts(typed_parts: Path) -> None:
    edges = held_edges(one_rank_graph(typed_parts))
    ranges = edges.edge_ranges(LIKE)
    folder = open_parts(typed_parts)
    assert [each.csc.num_edges for each in ranges] == [part.num_edges(LIKE) for part in folder.parts]
    assert [each.first for each in ranges] == list(folder.book.offsets["item"][:-1])
    assert edges.total(torch.tensor([3, 4]), CountedLinks(BUYS)).tolist() == [3, 4]


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


def test_counts_of_one_process_are_its_own(typed_parts: Path) -> None:
    held, counts = LocalPartitions.of(open_parts(typed_parts, [0])), torch.tensor([3, 4])
    assert HeldEdges(held).total(counts, CountedLinks(BUYS)).tolist() == [3, 4]


COUNTS = st.lists(st.integers(0, 3), min_size=1, max_size=8)


@given(counts=COUNTS, seed=st.integers(0, 99))
def test_links_are_numbered_by_the_original_ids_of_their_destinations(counts: list[int], seed: int) -> None:
    originals = torch.randperm(len(counts), generator=torch.Generator().manual_seed(seed))
    by_id = [(node, row) for node, count in enumerate(counts) for row in range(count)]
    expected = sorted(by_id, key=lambda link: (int(originals[link[0]]), link[1]))
    places = LinkPlaces.of(torch.tensor(counts), originals)
    assert places.count == len(expected)
    rows = places.rows(torch.arange(places.count))
    assert rows.tolist() == [by_id.index(link) for link in expected]
    destinations = torch.tensor([node for node, _ in by_id], dtype=torch.int64)
    numbers = places.numbers(destinations, torch.arange(places.count))
    assert numbers[rows].tolist() == list(range(places.count))
    offsets = [0, len(counts) // 2, len(counts)]
    assert places.bounds(offsets) == [sum(counts[:end]) for end in offsets]
