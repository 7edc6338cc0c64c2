"""Ends of links as seeds: every end finds its node again, once per node or once per end."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.draw import DrawKey
from khop.sampling.link_ends import NegativesByType, Planted, plant_apart, plant_merged
from khop.sampling.sampler import LinkSeeds, SeedLinks, Seeds

BUYS, LIKE = ("user", "buys", "item"), ("item", "like", "item")
LINKS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)), max_size=6)


def planted(
    buys: list[tuple[int, int, int]], likes: list[tuple[int, int, int]], own: list[int]
) -> tuple[Seeds, NegativesByType]:
    """Links of two types, of which the first have a negative each, beside seed nodes."""
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
    return seeds, {BUYS: torch.tensor([[link[2]] for link in buys]).view(-1, 1), LIKE: None}


def check_rows(found: Planted, seeds: Seeds, negatives: NegativesByType) -> None:
    assert seeds.links is not None
    for edge_type, of_type in seeds.links.by_type.items():
        source, _, destination = edge_type
        nodes, rows = found.seeds.nodes, found.rows[edge_type]
        assert torch.equal(nodes[source][rows.source], of_type.edges[0])
        assert torch.equal(nodes[destination][rows.destination], of_type.edges[1])
        drawn = negatives[edge_type]
        assert (rows.negatives is None) is (drawn is None)
        if drawn is not None and rows.negatives is not None:
            assert torch.equal(nodes[destination][rows.negatives], drawn)


def sorted_unique(node_type: str, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    nodes, places = torch.unique(ids, return_inverse=True)
    return nodes, places


@given(buys=LINKS, likes=LINKS, own=st.lists(st.integers(0, 4), max_size=3))
def test_merged_ends_are_one_seed_per_node(
    buys: list[tuple[int, int, int]], likes: list[tuple[int, int, int]], own: list[int]
) -> None:
    seeds, negatives = planted(buys, likes, own)
    found = plant_merged(seeds, negatives, sorted_unique)
    check_rows(found, seeds, negatives)
    items = found.seeds.nodes["item"].tolist()
    assert items[: len(own)] == own  # given seeds stay first, and as they are
    assert len(set(items[len(own) :])) == len(items) - len(own)


@given(buys=LINKS, likes=LINKS, own=st.lists(st.integers(0, 4), max_size=3))
def test_ends_apart_have_a_position_and_the_time_of_their_link(
    buys: list[tuple[int, int, int]], likes: list[tuple[int, int, int]], own: list[int]
) -> None:
    seeds, negatives = planted(buys, likes, own)
    found = plant_apart(seeds, negatives)
    check_rows(found, seeds, negatives)
    assert found.seeds.times is not None
    ends = {t: ids.numel() for t, ids in found.seeds.nodes.items()}
    assert sum(ends.values()) == len(own) + 3 * len(buys) + 2 * len(likes)
    assert {t: of.numel() for t, of in found.seeds.positions.items()} == ends
    assert {t: of.numel() for t, of in found.seeds.times.items()} == ends
    for edge_type, rows in found.rows.items():
        positions = found.seeds.positions
        of_ends = [positions[edge_type[0]][rows.source], positions[edge_type[2]][rows.destination]]
        if rows.negatives is not None:
            of_ends.append(positions[edge_type[2]][rows.negatives].flatten())
        distinct = torch.cat(of_ends)
        assert torch.unique(distinct).numel() == distinct.numel()  # keys of disjoint trees
        assert seeds.links is not None
        times = seeds.links.by_type[edge_type].times
        assert times is not None
        assert torch.equal(found.seeds.times[edge_type[0]][rows.source], times)
        assert torch.equal(found.seeds.times[edge_type[2]][rows.destination], times)
