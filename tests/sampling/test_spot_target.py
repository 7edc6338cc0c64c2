"""SpotTarget leaves out links at nodes of low degree only."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import khop
from khop.graph.csc_graph import csc_graph_from_edges
from khop.sampling.sampler import LinkSeeds, SeedLinks
from khop.sampling.spot_target import SpotTarget
from support.group_graphs import PAIRS, TO, chorded
from support.shop_links import BOUGHT_BY, BUYS, bought, link_seeds, shop

PAIR = st.tuples(st.integers(0, 5), st.integers(0, 3))


def kept(links: LinkSeeds, edge_type: tuple[str, str, str]) -> list[tuple[int, int]]:
    return [(int(a), int(b)) for a, b in links.by_type[edge_type].batch_edges.T]


def of_links(edge_type: tuple[str, str, str], pairs: list[tuple[int, int]]) -> LinkSeeds:
    edges = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T
    positions = torch.arange(edges.shape[1])
    return LinkSeeds({edge_type: SeedLinks(edges, positions, edges)}, khop.DrawKey(0))


@given(st.lists(PAIR, max_size=25), st.lists(PAIR, max_size=8), st.integers(1, 5))
def test_the_links_are_those_of_a_count_by_hand(
    edges: list[tuple[int, int]], pairs: list[tuple[int, int]], below: int
) -> None:
    found = SpotTarget(below).spotted(bought(edges), of_links(BUYS, pairs))
    degree = [[edge[end] for edge in edges] for end in (0, 1)]
    assert kept(found, BUYS) == [
        (user, item) for user, item in pairs if min(degree[0].count(user), degree[1].count(item)) < below
    ]


def test_both_ends_of_one_type_are_counted_by_the_type_itself() -> None:
    degree = [sum(into == node for _, into in PAIRS) for node in range(24)]
    pairs = [(0, 1), (22, 22), (23, 0), (4, 9)]
    for below in (1, 2, 4, 5):
        found = SpotTarget(below).spotted(chorded(), of_links(TO, pairs))
        assert kept(found, TO) == [(a, b) for a, b in pairs if min(degree[a], degree[b]) < below]


def test_a_sampler_leaves_out_these_links_and_their_reverses() -> None:
    """Users of the shop have 3 or 4 items; items have at least as many users."""
    graph = shop()
    links = [(user, user) for user in range(6)]
    degrees = graph.csc(BOUGHT_BY).indptr.diff().tolist()
    below = max(degrees)
    seeds = link_seeds({BUYS: links})
    sample = khop.LinkSampler(graph, [-1], exclude=khop.SpotTarget(below)).sample(seeds, khop.DrawKey(1))
    low = {(u, i) for u, i in links if min(degrees[u], int(graph.csc(BUYS).indptr.diff()[i])) < below}
    assert 0 < len(low) < len(links)
    for edge_type, pairs in ((BUYS, low), (BOUGHT_BY, {(i, u) for u, i in low})):
        source, destination = sample.blocks[0].adjacencies[edge_type].edge_index
        ends = zip(
            sample.nodes[edge_type[0]][source].tolist(),
            sample.nodes[edge_type[2]][destination].tolist(),
            strict=True,
        )
        found = set(ends)
        assert not found & pairs
        others = {(a, b) if edge_type == BUYS else (b, a) for a, b in links} - pairs
        assert others <= found


def test_a_type_without_a_reverse_is_refused() -> None:
    none = torch.zeros(2, 1, dtype=torch.int64)
    graph = csc_graph_from_edges({"user": 1, "item": 1}, {BUYS: (none[0], none[1])})
    with pytest.raises(ValueError, match="degrees of 'user' nodes are counted by the reverse edge type"):
        SpotTarget(3).spotted(graph, of_links(BUYS, [(0, 0)]))
