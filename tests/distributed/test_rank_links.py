"""Counts and edges that ranks exchange once, here of one rank; tests/processes has several."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop.distributed.rank_links import RankLinks, of_all_nodes, rows_of_all_nodes
from khop.exchange.lanes import Lanes
from khop.exchange.peers import Message
from khop.runtime.group import ALONE
from support.one_rank import one_rank_graph
from support.small_typed_folders import BUYS


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
