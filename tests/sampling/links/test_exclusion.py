"""Links of a batch carry no message in it, and the other edges stay.

SpotTarget leaves out links at nodes of low degree only.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import khop
from khop import DrawKey, Expansion, LinkSampler, Output, Sample
from khop.api.loader import Loader
from khop.graph.rule import Rule
from khop.graph.store import csc_graph_from_edges
from khop.sampling.links.exclusion import SpotTarget
from khop.sampling.links.link_seeds import Links
from khop.sampling.rules.sum import Sum
from khop.sampling.rules.weighted import Weighted
from khop.sampling.seeds import LinkSeeds, SeedLinks
from support.group_graphs import PAIRS, TO, chorded
from support.random_graphs import EDGE, ring
from support.shop_links import BOUGHT_BY, BUYS, VIEWS, bought, link_seeds, shop

KEY = DrawKey(11)


def drawn_edges(sample: Sample, edge_type: tuple[str, str, str]) -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    for block in sample.blocks:
        if edge_type in block.adjacencies:
            source, destination = block.adjacencies[edge_type].edge_index
            found |= set(
                zip(
                    sample.nodes[edge_type[0]][source].tolist(),
                    sample.nodes[edge_type[2]][destination].tolist(),
                    strict=True,
                )
            )
    return found


@pytest.mark.parametrize(
    ("expansion", "output"),
    [
        (Expansion.LAYERED, Output.DIRECTIONAL),
        (Expansion.SUBGRAPH, Output.DIRECTIONAL),
        (Expansion.SUBGRAPH, Output.INDUCED),
    ],
)
def test_no_excluded_edge_and_no_reverse_of_one_is_left(expansion: Expansion, output: Output) -> None:
    links = [(user, user) for user in range(6)]
    sampler = LinkSampler(shop(), [-1, -1], expansion=expansion, exclude="edge+reverse", output=output)
    sample = sampler.sample(link_seeds({BUYS: links}), KEY)
    left = {(u, i) for u in range(8) for i in range(6) if u % 2 == i % 2 or i == u + 1} - set(links)
    assert drawn_edges(sample, BUYS) == left
    assert drawn_edges(sample, BOUGHT_BY) == {(item, user) for user, item in left}
    assert len(drawn_edges(sample, VIEWS)) == 48


def test_excluding_the_edge_leaves_its_reverse() -> None:
    sampler = LinkSampler(shop(), [-1, -1], exclude="edge")
    sample = sampler.sample(link_seeds({BUYS: [(0, 0), (2, 2)]}), KEY)
    assert not {(0, 0), (2, 2)} & drawn_edges(sample, BUYS)
    assert {(0, 0), (2, 2)} <= drawn_edges(sample, BOUGHT_BY)


def test_of_an_undirected_graph_both_directions_go() -> None:
    nodes = torch.arange(12)
    both = torch.cat([nodes, (nodes + 1) % 12]), torch.cat([(nodes + 1) % 12, nodes])
    sampler = LinkSampler(
        csc_graph_from_edges({"node": 12}, {EDGE: both}), [-1, -1, -1], exclude="edge+reverse"
    )
    left = drawn_edges(sampler.sample(link_seeds({EDGE: [(3, 4), (9, 8)]}), KEY), EDGE)
    assert left
    assert not {(3, 4), (4, 3), (9, 8), (8, 9)} & left


def test_edges_that_a_sample_turns_round_are_none_that_was_excluded() -> None:
    sampler = LinkSampler(
        ring(12, 3),
        [-1, -1],
        expansion=Expansion.SUBGRAPH,
        exclude="edge+reverse",
        output=Output.BIDIRECTIONAL,
    )
    left = drawn_edges(sampler.sample(link_seeds({EDGE: [(3, 2), (9, 7)]}), KEY), EDGE)
    assert {(4, 2), (2, 4)} <= left
    assert not {(3, 2), (2, 3), (9, 7), (7, 9)} & left


@pytest.mark.core(1)
@pytest.mark.parametrize("draws", [500, pytest.param(4000, marks=pytest.mark.long)])
def test_what_is_left_of_a_row_is_an_even_draw_of_what_may_be_left(draws: int) -> None:
    spokes = torch.arange(1, 9), torch.zeros(8, dtype=torch.int64)
    sampler = LinkSampler(
        csc_graph_from_edges({"node": 9}, {EDGE: spokes}), [4], exclude="edge", edge_ids=True
    )
    seen: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    for number in range(draws):
        sample = sampler.sample(link_seeds({EDGE: [(1, 0), (2, 0)]}), DrawKey(number))
        drawn = drawn_edges(sample, EDGE)
        seen.update(source for source, _ in drawn)
        sizes[len(drawn)] += 1
    assert set(seen) == {3, 4, 5, 6, 7, 8}
    assert sum((count - draws / 2) ** 2 / (draws / 2) for count in seen.values()) < 25
    expected = {4: 15 / 70, 3: 40 / 70, 2: 15 / 70}  # hypergeometric: two of eight are excluded
    assert all(abs(sizes[size] / draws - share) < 2.5 / draws**0.5 for size, share in expected.items())


def test_reverses_are_excluded_where_a_type_has_one() -> None:
    pairs = {BUYS: [(0, 0), (1, 1)], VIEWS: [(2, 3), (4, 5)]}
    sampler = LinkSampler(shop(), [-1, -1], exclude="edge+reverse")
    sample = sampler.sample(link_seeds(pairs), KEY)
    for edge_type, links in pairs.items():
        assert not drawn_edges(sample, edge_type) & set(links)
    assert not drawn_edges(sample, BOUGHT_BY) & {(0, 0), (1, 1)}
    assert {(2, 2), (3, 3)} <= drawn_edges(sample, BOUGHT_BY)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_whole_epoch_of_links_with_and_without_a_reverse_is_drawn(threads: int) -> None:
    seeds = Links(
        {BUYS: torch.tensor([[0, 1], [0, 1]]), VIEWS: torch.cartesian_prod(*[torch.arange(6)] * 2).T}
    )
    sampler = LinkSampler(shop(), [2, 2], exclude="edge+reverse")
    batches = list(Loader(sampler, seeds, 5, shuffle=True, threads=threads))
    assert sum(of.source.numel() for batch in batches for of in batch.links.values()) == 38


def test_reverses_that_the_schema_does_not_name_are_refused_in_the_first_batch() -> None:
    loader = Loader(
        LinkSampler(shop(), [2], exclude="edge+reverse"), Links({VIEWS: torch.zeros(2, 3).long()}), 1
    )
    with pytest.raises(ValueError, match=r"the schema has no reverse of .*views"):
        loader.batch(0, 0)


def test_an_unknown_exclusion_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"exclude 'everything': must be 'edge', 'edge\+reverse' or None"):
        LinkSampler(shop(), [2], exclude="everything")


MEAN = Weighted("w", replacement=True)


@pytest.mark.long
@pytest.mark.parametrize(("rule", "expected"), [(MEAN, [1 / 3, 2 / 3]), (Sum(MEAN), [3 / 8, 6 / 8])], ids=str)
def test_all_neighbors_weigh_what_draws_estimate(rule: Rule, expected: list[float]) -> None:
    """Without an edge, shares of a mean add up to 1 again; terms of a sum stay as they are."""
    ends = torch.tensor([1, 2, 3, 0, 3]), torch.tensor([0, 0, 0, 4, 4])
    weights = {EDGE: {"w": torch.tensor([1.0, 2.0, 5.0, 3.0, 1.0])}}
    graph = csc_graph_from_edges({"node": 5}, {EDGE: ends}, columns=weights)

    def coefficients(fanout: int, key: DrawKey) -> Tensor:
        sampler = LinkSampler(graph, [fanout], rule=rule, exclude="edge")
        sample = sampler.sample(link_seeds({EDGE: [(3, 0)]}), key)
        edges = sample.blocks[0].adjacencies[EDGE]
        sources = sample.nodes["node"][edges.edge_index[0]]
        weight = torch.full((sources.numel(),), 1 / sources.numel()) if edges.weight is None else edges.weight
        return torch.zeros(5).index_add_(0, sources, weight)[1:4]

    wanted = torch.tensor([*expected, 0.0])
    torch.testing.assert_close(coefficients(-1, KEY), wanted)
    mean = torch.stack([coefficients(40, DrawKey(number)) for number in range(400)]).mean(0)
    torch.testing.assert_close(mean, wanted, rtol=0, atol=0.02)


def test_rows_without_excluded_edges_keep_their_bits() -> None:
    graph = csc_graph_from_edges(
        {"node": 6},
        {EDGE: (torch.tensor([1, 2, 3, 1, 2, 3]), torch.tensor([0, 0, 0, 4, 4, 4]))},
        columns={EDGE: {"w": torch.tensor([0.1, 0.7, 0.3, 0.1, 0.7, 0.3])}},
    )
    weights = []
    for pairs in ([(3, 0), (5, 4)], [(5, 0), (5, 4)]):
        sampler = LinkSampler(graph, [-1], rule=MEAN, exclude="edge")
        sample = sampler.sample(link_seeds({EDGE: pairs}), KEY)
        edges = sample.blocks[0].adjacencies[EDGE]
        assert edges.weight is not None
        sources, destinations = sample.nodes["node"][edges.edge_index]
        there = destinations == 4
        weights.append(sorted(zip(sources[there].tolist(), edges.weight[there].tolist(), strict=True)))
    assert weights[0] == weights[1]
    assert len(weights[0]) == 3


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
    with pytest.raises(ValueError, match="degrees of 'user' nodes are counted in the reverse edge type"):
        SpotTarget(3).spotted(graph, of_links(BUYS, [(0, 0)]))
