"""Who holds what, and who is asked for it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.distributed.partition_owners import PartitionOwners

SIZES = st.integers(1, 9)


@given(parts=SIZES, world_size=SIZES)
def test_every_part_is_held_and_every_rank_holds_a_part(parts: int, world_size: int) -> None:
    holders = PartitionOwners(parts, 0, world_size)
    held = {(rank, part) for rank in range(world_size) for part in holders.parts_of(rank)}
    assert held == {(rank, part) for part in range(parts) for rank in holders.ranks_of(part)}
    assert {rank for rank, _ in held} == set(range(world_size))
    assert {part for _, part in held} == set(range(parts))
    assert len(held) == max(parts, world_size)  # no part twice where ranks are few, no rank twice where many


@given(parts=SIZES, world_size=SIZES, sizes=st.lists(st.integers(0, 5), min_size=9, max_size=9))
def test_a_rank_asks_itself_for_what_it_holds_and_holders_for_the_rest(
    parts: int, world_size: int, sizes: list[int]
) -> None:
    offsets = [0]
    for size in sizes[:parts]:
        offsets.append(offsets[-1] + size)
    for rank in range(world_size):
        holders = PartitionOwners(parts, rank, world_size)
        bounds = holders.bounds(offsets)
        assert (bounds[0], bounds[-1], bounds) == (0, offsets[-1], sorted(bounds))
        assert (bounds[rank], bounds[rank + 1])[: bounds[rank + 1] > bounds[rank]] == holders.held(
            offsets, rank
        )[: bounds[rank + 1] > bounds[rank]]
        for asked, (first, end) in enumerate(pairwise(bounds)):
            held_first, held_end = holders.held(offsets, asked)
            assert first == end or held_first <= first <= end <= held_end


def test_owners_of_a_part_share_the_requests_for_it() -> None:
    asked = [PartitionOwners(2, rank, 6).asked(1) for rank in range(3)]
    assert sorted(asked) == [3, 4, 5]


def test_a_rank_or_a_part_that_cannot_be_is_named() -> None:
    with pytest.raises(ValueError, match="0 parts held by rank 0 of 1"):
        PartitionOwners(0)
    with pytest.raises(ValueError, match="2 parts held by rank 3 of 3"):
        PartitionOwners(2, 3, 3)
