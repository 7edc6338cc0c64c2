"""Seeds prefer who holds them; shares are as even as ever, and together they are the step."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.distributed.partition_owners import PartitionOwners
from khop.sampling.link_seeds import Links
from khop.sampling.sampler import Seeds
from khop.sampling.seeds import NodeSeeds, SeedAffinity, SeedOrder

BOUNDS = {"user": [0, 3, 11, 20], "item": [0, 0, 2, 9]}
NODES = NodeSeeds({"user": torch.arange(20).repeat(2), "item": torch.arange(9)})
LIKES = ("user", "likes", "item")
LINKS = Links({LIKES: torch.stack([torch.arange(40) % 20, torch.arange(40) % 9])})


def affinity_of(world_size: int) -> SeedAffinity:
    return SeedAffinity(BOUNDS, [PartitionOwners(3, 0, world_size).ranks_of(part) for part in range(3)])


def shares(order: SeedOrder, epoch: int, step: int) -> list[Seeds]:
    return [replace(order, rank=rank).share(epoch, step) for rank in range(order.world_size)]


@given(world_size=st.integers(1, 7), batch_size=st.integers(1, 60), epoch=st.integers(0, 3))
def test_every_seed_is_in_one_share_and_shares_are_as_even_as_ever(
    world_size: int, batch_size: int, epoch: int
) -> None:
    plain = SeedOrder(NODES, batch_size, shuffle=True, world_size=world_size)
    local = replace(plain, affinity=affinity_of(world_size))
    for step in range(plain.num_steps):
        before, after = shares(plain, epoch, step), shares(local, epoch, step)
        assert [share.count for share in after] == [share.count for share in before]
        for node_type in NODES.nodes:
            positions = [torch.cat([share.positions[node_type] for share in of]) for of in (before, after)]
            nodes = [torch.cat([share.nodes[node_type] for share in of]) for of in (before, after)]
            order = positions[1].argsort()
            assert torch.equal(positions[1][order], positions[0])
            assert torch.equal(nodes[1][order], nodes[0])
            for share in after:
                assert bool((share.positions[node_type].diff() > 0).all())  # in global order


@given(world_size=st.integers(2, 7), epoch=st.integers(0, 3))
def test_no_rank_has_anothers_seed_while_that_one_has_its(world_size: int, epoch: int) -> None:
    """Or room for it: a seed lies elsewhere only where its holders have no more room."""
    order = SeedOrder(NODES, 13, shuffle=True, world_size=world_size, affinity=affinity_of(world_size))
    holders = PartitionOwners(3, 0, world_size)
    for step in range(order.num_steps):
        of_ranks = [
            [
                int(torch.searchsorted(torch.tensor(BOUNDS[t][1:]), node, right=True))
                for t, nodes in share.nodes.items()
                for node in nodes
            ]
            for share in shares(order, epoch, step)
        ]
        for rank, parts in enumerate(of_ranks):
            for part in parts:
                held_by = holders.ranks_of(part)
                if rank not in held_by:
                    assert all(set(of_ranks[holder]) <= set(holders.parts_of(holder)) for holder in held_by)


def test_links_go_to_the_owners_of_their_sources() -> None:
    order = SeedOrder(LINKS, 40, world_size=3, affinity=affinity_of(3))
    parts = []
    for share in shares(order, 0, 0):
        assert share.links is not None
        sources = share.links.by_type[LIKES].edges[0]
        parts.append(torch.bincount(torch.searchsorted(torch.tensor([3, 11, 20]), sources, right=True)))
    assert [int(of_rank[rank]) for rank, of_rank in enumerate(parts)] == [6, 13, 14]


def test_alone_a_rank_has_all() -> None:
    order = SeedOrder(NODES, 49, affinity=affinity_of(3))
    assert torch.equal(order.share(0, 0).nodes["user"], NODES.nodes["user"])
