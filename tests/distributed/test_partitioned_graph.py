"""The shares of owners make up a hop.

Counts and edges that ranks exchange once, here of one rank; tests/processes has several.

Negatives of ranks, here of one: those of the same parts in one process; tests/processes has several.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop.distributed.exchange.lanes import Lanes
from khop.distributed.exchange.peers import Message
from khop.distributed.partitioned_graph import HopShares, RankLinks, of_all_nodes, rows_of_all_nodes
from khop.distributed.processes.group import ALONE
from khop.draw import DegreeNegatives, DrawKey, DrawnNegatives, Frontier, Positives, UniformNegatives
from khop.graph.partitions.local_partitions import LocalPartitionGraph, LocalPartitions
from khop.graph.partitions.parts_folder import PartsFolder, open_parts
from khop.graph.rule import Hop
from khop.sampling.rules.uniform import Uniform
from support.one_rank import one_rank_graph
from support.small_typed_folders import BUYS, LIKE

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


def links_of(parts: Path) -> RankLinks:
    graph = one_rank_graph(parts)
    return RankLinks(graph.held.folder, graph.holders, graph.lanes)


def test_alone_a_rank_gets_its_own_counts_and_edges(typed_parts: Path) -> None:
    links = links_of(typed_parts)
    counts = torch.arange(200)
    assert torch.equal(links.counted(BUYS, counts), counts)
    pairs = torch.arange(300).repeat(2), torch.arange(600) % 200
    for found, own in zip(links.connected(BUYS, pairs), pairs, strict=True):
        assert torch.equal(found, own)


@pytest.mark.parametrize(
    ("counts", "problem"),
    [(torch.arange(199), "199 numbers, where 200 nodes are"), (torch.full((200,), -1), "number of edges -1")],
)
def test_counts_that_cannot_be_are_refused_with_their_sender(
    typed_parts: Path, counts: torch.Tensor, problem: str
) -> None:
    links = links_of(typed_parts)
    bounds = links.folder.book.offsets["item"]
    with pytest.raises(ValueError, match=problem):
        of_all_nodes(links.lanes.peers, links.holders, bounds, counts)


def test_alone_a_rank_gets_its_own_rows(typed_parts: Path) -> None:
    links, rows = links_of(typed_parts), torch.randn(200, 3, dtype=torch.float64)
    given = links.lanes.peers, links.holders, links.folder.book.offsets["item"]
    assert torch.equal(rows_of_all_nodes(*given, rows, Message("spreading labels", "row")), rows)
    with pytest.raises(ValueError, match="199 numbers, where 200 nodes are"):
        rows_of_all_nodes(*given, rows[:199], Message("spreading labels", "row"))


def test_ends_that_are_no_nodes_are_refused(typed_parts: Path) -> None:
    pairs = torch.tensor([1, 2]), torch.tensor([3, 200])
    with pytest.raises(ValueError, match=r"destination 200, must be in \[0, 200\)"):
        links_of(typed_parts).connected(BUYS, pairs)


def test_lanes_cannot_exchange_them(typed_parts: Path) -> None:
    graph, lanes = one_rank_graph(typed_parts), Lanes(ALONE, 1)
    links = RankLinks(graph.held.folder, graph.holders, lanes)
    with pytest.raises(ValueError, match="the ranks must exchange this before batches are made"):
        list(lanes.map(lambda _: links.counted(BUYS, torch.arange(200)), [0], 1, lambda item: (0, item)))


POSITIVES = Positives(torch.arange(0, 150, 7), torch.arange(22))


@pytest.mark.parametrize(
    "negatives",
    [UniformNegatives(2), UniformNegatives(2, exact=True), DegreeNegatives(3, exact=True)],
    ids=str,
)
@pytest.mark.parametrize("edge_type", [BUYS, LIKE], ids=" ".join)
def test_draws_are_those_of_one_process(
    typed_parts: Path, negatives: DrawnNegatives, edge_type: tuple[str, str, str]
) -> None:
    key = DrawKey(11)
    expected = LocalPartitionGraph(open_parts(typed_parts)).sample_negatives(
        edge_type, negatives, POSITIVES, key
    )
    found = one_rank_graph(typed_parts).sample_negatives(edge_type, negatives, POSITIVES, key)
    assert torch.equal(found, expected)


def test_a_source_that_does_not_exist_is_named(typed_parts: Path) -> None:
    wrong = Positives(torch.tensor([3, 300]), torch.arange(2))
    with pytest.raises(ValueError, match="source 300: there are 300 'user' nodes"):
        one_rank_graph(typed_parts).sample_negatives(BUYS, UniformNegatives(exact=True), wrong, DrawKey(1))
