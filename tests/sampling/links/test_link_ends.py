"""Ends of links as seeds: every end finds its node again, once per node or once per end."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.draw import DrawKey
from khop.sampling.links.link_negatives import DrawnEnds, NegativesByType, Planted, plant_apart, plant_merged
from khop.sampling.seeds import LinkSeeds, SeedLinks, Seeds

BUYS, LIKE = ("user", "buys", "item"), ("item", "like", "item")
NODE = st.integers(0, 4)
LINKS = st.lists(st.tuples(NODE, NODE, NODE, NODE), max_size=6)  # two ends and two numbers for negatives
SIDES = st.sampled_from([(0, 0), (1, 0), (0, 2), (1, 2)])  # negative destinations and sources of a link
Drawn = list[tuple[int, int, int, int]]
Sides = tuple[int, int]


def planted(buys: Drawn, likes: Drawn, own: list[int], sides: list[Sides]) -> tuple[Seeds, NegativesByType]:
    """Links of two types beside seed nodes, with as many negatives as `sides` says of each type."""
    by_type, first = {}, 10
    for edge_type, listed in ((BUYS, buys), (LIKE, likes)):
        ends = torch.tensor([pair[:2] for pair in listed], dtype=torch.int64).view(-1, 2).T
        positions = torch.arange(first, first + len(listed))
        by_type[edge_type] = SeedLinks(ends, positions, ends, times=ends[0] * 100)
        first += len(listed)
    nodes = torch.tensor(own, dtype=torch.int64)
    seeds = Seeds(
        {"item": nodes}, {"item": torch.arange(len(own))}, {"item": nodes}, LinkSeeds(by_type, DrawKey(1))
    )
    negatives = {}
    for edge_type, listed, (destinations, sources) in zip((BUYS, LIKE), (buys, likes), sides, strict=True):
        numbers = torch.tensor([link[2:] for link in listed], dtype=torch.int64).view(-1, 2)
        negatives[edge_type] = DrawnEnds(
            numbers[:, :destinations] if destinations else None,
            numbers.flip(1)[:, :sources] if sources else None,
        )
    return seeds, negatives


def check_rows(found: Planted, seeds: Seeds, negatives: NegativesByType) -> None:
    assert seeds.links is not None
    for edge_type, of_type in seeds.links.by_type.items():
        source, _, destination = edge_type
        nodes, rows = found.seeds.nodes, found.rows[edge_type]
        assert torch.equal(nodes[source][rows.source], of_type.edges[0])
        assert torch.equal(nodes[destination][rows.destination], of_type.edges[1])
        drawn = negatives[edge_type]
        for node_type, own, expected in (
            (destination, rows.negatives, drawn.destinations),
            (source, rows.source_negatives, drawn.sources),
        ):
            assert (own is None) is (expected is None)
            if own is not None and expected is not None:
                assert torch.equal(nodes[node_type][own], expected)


def sorted_unique(node_type: str, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    nodes, places = torch.unique(ids, return_inverse=True)
    return nodes, places


@given(buys=LINKS, likes=LINKS, own=st.lists(NODE, max_size=3), sides=st.lists(SIDES, min_size=2, max_size=2))
def test_merged_ends_are_one_seed_per_node(
    buys: Drawn, likes: Drawn, own: list[int], sides: list[Sides]
) -> None:
    seeds, negatives = planted(buys, likes, own, sides)
    found = plant_merged(seeds, negatives, sorted_unique)
    check_rows(found, seeds, negatives)
    items = found.seeds.nodes["item"].tolist()
    assert items[: len(own)] == own  # given seeds stay first, and as they are
    assert len(set(items[len(own) :])) == len(items) - len(own)


@given(buys=LINKS, likes=LINKS, own=st.lists(NODE, max_size=3), sides=st.lists(SIDES, min_size=2, max_size=2))
def test_ends_apart_have_a_position_and_the_time_of_their_link(
    buys: Drawn, likes: Drawn, own: list[int], sides: list[Sides]
) -> None:
    seeds, negatives = planted(buys, likes, own, sides)
    found = plant_apart(seeds, negatives)
    check_rows(found, seeds, negatives)
    assert found.seeds.times is not None
    ends = {t: ids.numel() for t, ids in found.seeds.nodes.items()}
    of_links = [2 + sum(of_type) for of_type in sides]
    assert sum(ends.values()) == len(own) + of_links[0] * len(buys) + of_links[1] * len(likes)
    assert {t: of.numel() for t, of in found.seeds.positions.items()} == ends
    assert {t: of.numel() for t, of in found.seeds.times.items()} == ends
    for edge_type, rows in found.rows.items():
        positions = found.seeds.positions
        assert seeds.links is not None
        times = seeds.links.by_type[edge_type].times
        assert times is not None
        of_ends = []
        for node_type, of_end in (
            (edge_type[0], rows.source),
            (edge_type[2], rows.destination),
            (edge_type[2], rows.negatives),
            (edge_type[0], rows.source_negatives),
        ):
            if of_end is not None:
                of_ends.append(positions[node_type][of_end].flatten())
                expected = times if of_end.dim() == 1 else times[:, None].expand(of_end.shape)
                assert torch.equal(found.seeds.times[node_type][of_end], expected)
        distinct = torch.cat(of_ends)
        assert torch.unique(distinct).numel() == distinct.numel()  # keys of disjoint trees
