"""Requested rows are split into held, cached and remote ones, asked for once, and put in their places.

Who holds what, and who is asked for it.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.distributed.owners import PartitionOwners
from khop.distributed.partitioned_features import RemoteRows, RowQuery

BOUNDS = [0, 4, 4, 10, 15]  # rank 0 is asked for the first four ids, rank 1 for nothing
HERE = (4, 7)  # of the ids that rank 2 would be asked for
IDS = st.integers(0, 14)


@given(wanted=st.lists(IDS, max_size=20), kept=st.none() | st.sets(IDS.filter(lambda id_: not 4 <= id_ < 7)))
def test_every_row_comes_from_its_owner(wanted: list[int], kept: set[int] | None) -> None:
    ids = torch.tensor(wanted, dtype=torch.int64)
    in_slots = sorted(kept or ())
    slots = [in_slots.index(id_) if id_ in in_slots else -1 for id_ in wanted]
    if kept is None:
        rows_of_ids = RemoteRows.of(ids, HERE)
    else:
        rows_of_ids = RemoteRows.of(ids, HERE, torch.tensor(slots, dtype=torch.int64), len(kept))
    asked = RowQuery.of("n", ("x",), rows_of_ids, BOUNDS)
    rows = [*range(*HERE), *in_slots]
    for rank in range(4):
        request = asked.request(rank, BOUNDS[rank])
        of_rank = {id_ for id_ in wanted if BOUNDS[rank] <= id_ < BOUNDS[rank + 1] and not 4 <= id_ < 7}
        assert (request.ids + BOUNDS[rank]).tolist() == sorted(of_rank - set(in_slots))
        rows += (request.ids + BOUNDS[rank]).tolist()
    assert [rows[place] for place in rows_of_ids.places.tolist()] == wanted
    assert rows_of_ids.num_remote == sum(not 4 <= id_ < 7 for id_ in wanted)
    assert rows_of_ids.num_kept == sum(id_ in in_slots for id_ in wanted)


@given(
    ids=st.lists(st.integers(0, 19), max_size=30),
    span=st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted),
    cached=st.lists(st.integers(0, 19), unique=True, max_size=6),
)
def test_places_find_every_requested_row(ids: list[int], span: list[int], cached: list[int]) -> None:
    first, end = span
    cached = [node for node in cached if not first <= node < end]
    slots = torch.tensor([cached.index(node) if node in cached else -1 for node in ids], dtype=torch.int64)
    rows = RemoteRows.of(torch.tensor(ids, dtype=torch.int64), (first, end), slots, len(cached))
    remote = {node for node in ids if not first <= node < end}
    assert rows.asked.tolist() == sorted(remote - set(cached))
    there = [*range(first, end), *cached, *rows.asked.tolist()]
    assert [there[place] for place in rows.places.tolist()] == ids
    assert rows.num_remote == sum(node in remote for node in ids)
    assert rows.num_kept == sum(node in cached for node in ids)


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
    with pytest.raises(ValueError, match="0 parts on rank 0 of 1"):
        PartitionOwners(0)
    with pytest.raises(ValueError, match="2 parts on rank 3 of 3"):
        PartitionOwners(2, 3, 3)
