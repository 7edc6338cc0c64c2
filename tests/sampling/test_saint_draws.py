"""Draws of GraphSAINT's nodes: keyed by position, along in-edges, and ending at sinks."""

from __future__ import annotations

import pytest
import torch

import khop
from khop.draw import DrawKey
from khop.sampling.saint_draws import SaintDraw, drawn_nodes
from support.group_graphs import COUNT, PAIRS, TO, chorded

KEY = DrawKey(6)


def test_a_walk_follows_in_edges_and_ends_where_there_are_none() -> None:
    draw = khop.SaintWalks(roots=40, length=3)
    nodes = drawn_nodes(chorded(), TO, draw, torch.arange(30), KEY).view(30, 4, 40)
    assert set(nodes[:, 0].flatten().tolist()) == set(range(COUNT))
    for before, after in ((nodes[:, i], nodes[:, i + 1]) for i in range(3)):
        for at, following in zip(before.flatten().tolist(), after.flatten().tolist(), strict=True):
            assert (following, at) in PAIRS or (at == following == 23)


def test_walks_that_meet_draw_apart() -> None:
    nodes = drawn_nodes(chorded(), TO, khop.SaintWalks(200, 1), torch.arange(1), KEY).view(2, 200)
    following = {int(node): set(nodes[1, nodes[0] == node].tolist()) for node in nodes[0].unique()}
    assert sum(len(after) > 1 for after in following.values()) > 10


@pytest.mark.parametrize("draw", [khop.SaintNodes(5), khop.SaintEdges(4), khop.SaintWalks(3, 2)], ids=str)
def test_a_subgraph_depends_on_its_position_and_the_key_only(draw: SaintDraw) -> None:
    graph = chorded()
    together = drawn_nodes(graph, TO, draw, torch.arange(6), KEY)
    assert together.shape[1] == draw.most_nodes
    assert torch.equal(drawn_nodes(graph, TO, draw, torch.tensor([4, 1]), KEY), together[[4, 1]])
    assert not torch.equal(drawn_nodes(graph, TO, draw, torch.arange(6), DrawKey(7)), together)
    assert drawn_nodes(graph, TO, draw, torch.arange(0), KEY).shape == (0, draw.most_nodes)
