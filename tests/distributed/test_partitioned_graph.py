"""Edges of ranks, here of one: hops and negatives are those of one process; tests/processes has several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from khop.distributed.exchange.lanes import Lanes
from khop.distributed.owners import (
    JoinedRows,
    NodeDegrees,
    RankOwners,
    counts_of_all_nodes,
    rows_of_all_nodes,
)
from khop.distributed.partitioned_graph import OwnedEdges
from khop.distributed.processes.group import ALONE
from khop.draw import DegreeNegatives, DrawKey, DrawnNegatives, Frontier, Positives, UniformNegatives
from khop.graph.partitions.local_partitions import LocalPartitionGraph, LocalPartitions
from khop.graph.partitions.parts_folder import open_parts
from khop.graph.rule import Hop
from khop.sampling.rules.uniform import Uniform
from support.one_rank import one_rank_graph
from support.small_typed_folders import BUYS, LIKE

HOP, KEY = Hop(1, {LIKE: 3}, Uniform()), DrawKey(4)


@pytest.mark.core(1)
@pytest.mark.parametrize("nodes", [[150, 3, 77, 3, 199, 0], []])
def test_neighbors_are_those_of_the_parts(typed_parts: Path, nodes: list[int]) -> None:
    frontier = {"item": Frontier(torch.tensor(nodes, dtype=torch.int64))}
    found = one_rank_graph(typed_parts).sample_hop(frontier, HOP, KEY)[LIKE]
    expected = LocalPartitions.of(open_parts(typed_parts)).sample_hop(frontier, HOP, KEY)[LIKE]
    assert torch.equal(found.offsets, expected.offsets)
    assert torch.equal(found.nodes, expected.nodes)


def test_a_node_of_no_part_and_a_type_that_there_is_not_are_refused(typed_parts: Path) -> None:
    graph = one_rank_graph(typed_parts)
    with pytest.raises(ValueError, match=r"frontier node 200: not in \[0, 200\)"):
        graph.sample_hop({"item": Frontier(torch.tensor([200]))}, HOP, KEY)
    hop = Hop(1, {("item", "nope", "item"): 3}, Uniform())
    with pytest.raises(ValueError, match="nope"):
        graph.sample_hop({"item": Frontier(torch.tensor([0]))}, hop, KEY)


def test_the_work_for_several_queries_is_that_for_each(typed_parts: Path) -> None:
    graph = one_rank_graph(typed_parts)
    queries = [{"item": Frontier(torch.tensor(nodes))} for nodes in ([150, 3], [77, 3, 199], [0])]
    question = graph.question(queries[0], HOP, KEY)
    for query, found in zip(queries, question.worked(queries), strict=True):
        (expected,) = question.worked([query])
        assert torch.equal(found[LIKE].offsets, expected[LIKE].offsets)
        assert torch.equal(found[LIKE].nodes, expected[LIKE].nodes)


def links_of(parts: Path) -> OwnedEdges:
    return one_rank_graph(parts).negatives.edges


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
    offsets = links.held.folder.book.offsets["item"]
    with pytest.raises(ValueError, match=problem):
        counts_of_all_nodes(links.owners, offsets, counts, NodeDegrees(BUYS))


def test_alone_a_rank_gets_its_own_rows(typed_parts: Path) -> None:
    links, rows = links_of(typed_parts), torch.randn(200, 3, dtype=torch.float64)
    given = links.owners, links.held.folder.book.offsets["item"]
    assert torch.equal(rows_of_all_nodes(*given, rows, JoinedRows()), rows)
    with pytest.raises(ValueError, match="199 numbers, where 200 nodes are"):
        rows_of_all_nodes(*given, rows[:199], JoinedRows())


def test_ends_that_are_no_nodes_are_refused(typed_parts: Path) -> None:
    pairs = torch.tensor([1, 2]), torch.tensor([3, 200])
    with pytest.raises(ValueError, match=r"destination 200, must be in \[0, 200\)"):
        links_of(typed_parts).connected(BUYS, pairs)


def test_lanes_cannot_exchange_them(typed_parts: Path) -> None:
    graph, lanes = one_rank_graph(typed_parts), Lanes(ALONE, 1)
    assert isinstance(graph.owners, RankOwners)
    links = OwnedEdges(graph.held, replace(graph.owners, lanes=lanes))
    with pytest.raises(ValueError, match="the ranks must exchange this before batches are made"):
        list(lanes.map(lambda _: links.counted(BUYS, torch.arange(200)), [0], 1, lambda item: (0, item)))


POSITIVES = Positives(torch.arange(0, 150, 7), torch.arange(22))


@pytest.mark.core(2)
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
