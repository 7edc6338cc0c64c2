"""Rows are split by owner, requested once each from other ranks, and joined in the order of the rows.

Slots of a few of many ids: the position among those kept, or -1.

Slots in messages of fixed size hold the ids that requests of exact sizes hold, and nothing is read.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.draw import Frontier, Neighbors
from khop.kernels.owners import (
    ByOwner,
    Drawn,
    IdSlots,
    first_outside,
    join_drawn,
    join_drawn_reference,
    owner_order,
    owner_order_reference,
    peer_slots,
    remote_rows,
    remote_rows_reference,
)
from khop.testing.graph_store import rows_of
from support.host_reads import counting

BOUNDS = st.sampled_from([[0, 50], [0, 20, 20, 35, 50], [0, 0, 50], [0, *range(3, 50, 2), 50]])


def drawn_by(counts: tuple[int, ...], dtypes: list[torch.dtype], seed: int, with_edges: bool) -> list[Drawn]:
    random = torch.Generator().manual_seed(seed)
    found: list[Drawn] = []
    for number, count in enumerate(counts):
        degrees = torch.randint(4, (count,), generator=random)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
        nodes = torch.randint(1000, (int(offsets[-1]),), generator=random)
        edges: Tensor | None = nodes * 7 if with_edges else None
        found.append((offsets, nodes.to(dtypes[number % len(dtypes)]), edges))
    return found


@given(
    ids=st.lists(st.integers(0, 49), max_size=60) | st.lists(st.integers(0, 49), max_size=60).map(sorted),
    bounds=BOUNDS,
    dtypes=st.sampled_from([[torch.int32], [torch.int64], [torch.int32, torch.int64]]),
    with_edges=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_shares_and_what_is_joined_are_those_of_the_reference(
    ids: list[int], bounds: list[int], dtypes: list[torch.dtype], with_edges: bool, seed: int
) -> None:
    wanted = torch.tensor(ids, dtype=torch.int64)
    counts, order = owner_order(wanted, bounds)
    as_reference = owner_order_reference(wanted, bounds)
    assert counts == as_reference[0]
    assert (order is None) == (as_reference[1] is None)
    if order is not None and as_reference[1] is not None:
        assert torch.equal(order, as_reference[1])
    drawn = drawn_by(counts, dtypes, seed, with_edges)
    offsets, nodes, edges = join_drawn(drawn, order)
    expected = join_drawn_reference(drawn, order)
    assert torch.equal(offsets, expected[0])
    assert nodes.dtype == expected[1].dtype
    assert torch.equal(nodes, expected[1])
    assert (edges is None) == (not with_edges)
    if edges is not None and expected[2] is not None:
        assert torch.equal(edges, expected[2])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ids_of_any_width_are_shared_out(dtype: torch.dtype) -> None:
    counts, order = owner_order(torch.tensor([30, 2, 31], dtype=dtype), [0, 10, 40])
    assert counts == (1, 2)
    assert order is not None
    assert order.tolist() == [1, 0, 2]


FAR = 1 << 40


@given(
    count=st.sampled_from([0, 1, 9, 600, 20_000]),  # few are sorted otherwise than many
    largest=st.sampled_from([1, 300, 5_000, FAR]),
    first=st.integers(0, 40),
    held=st.integers(0, 200),
    share_kept=st.sampled_from([None, 0.0, 0.3, 1.0]),
    seed=st.integers(0, 1 << 30),
)
def test_places_and_questions_are_those_of_the_reference(
    count: int, largest: int, first: int, held: int, share_kept: float | None, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(largest, (count,), generator=random)
    slots, kept = None, 0
    if share_kept is not None:
        kept = 11
        slots = torch.randint(kept, (count,), generator=random)
        slots[torch.rand(count, generator=random) >= share_kept] = -1
    places, asked = remote_rows(ids, first, first + held, slots=slots, kept=kept)
    wanted = remote_rows_reference(ids, first, first + held, slots=slots, kept=kept)
    assert torch.equal(places, wanted[0])
    assert torch.equal(asked, wanted[1])


def test_what_is_here_is_not_asked_for_and_what_is_kept_neither() -> None:
    ids, slots = torch.tensor([7, 3, 12, 7, 5, 90]), torch.tensor([-1, -1, 1, -1, -1, -1])
    places, asked = remote_rows(ids, 3, 6, slots=slots, kept=2)
    assert asked.tolist() == [7, 90]
    assert places.tolist() == [5, 0, 4, 5, 2, 6]  # three rows are here, two are kept, two are asked for


OWNED = [2, 5, 5, 9, 12]  # the second owner has none
IDS = st.lists(st.integers(2, 11), max_size=20) | st.lists(st.integers(2, 11), max_size=20).map(sorted)


def neighbors(ids: list[int]) -> Neighbors:
    """Of each id as many neighbors as it says, all different."""
    nodes = [100 * id_ + number for id_ in ids for number in range(id_ % 4)]
    offsets = torch.tensor([0, *(id_ % 4 for id_ in ids)]).cumsum(0)
    return Neighbors(offsets, torch.tensor(nodes, dtype=torch.int32), -torch.tensor(nodes, dtype=torch.int64))


@given(ids=IDS, bounds=st.sampled_from([OWNED, [2, 12], [0, 7, 20]]))
def test_answers_of_owners_are_joined_in_the_order_of_the_questions(
    ids: list[int], bounds: list[int]
) -> None:
    given_ids = torch.tensor(ids, dtype=torch.int64)
    owners = ByOwner.of(given_ids, bounds)
    shares = owners.split(given_ids)
    for share, first, end in zip(shares, bounds[:-1], bounds[1:], strict=True):
        assert share.tolist() == [id_ for id_ in ids if first <= id_ < end]
    assert owners.joined(shares).tolist() == ids
    joined = owners.neighbors([neighbors(share.tolist()) for share in shares])
    assert rows_of(joined) == rows_of(neighbors(ids))
    assert joined.edges is not None
    assert torch.equal(joined.edges, -joined.nodes.long())


def test_limits_and_trees_go_with_their_nodes() -> None:
    frontier = Frontier(torch.tensor([9, 3, 7]), torch.tensor([90, 30, 70]), torch.tensor([1, 2, 3]))
    shares = ByOwner.of(frontier.nodes, [0, 5, 10]).frontiers(frontier)
    assert [share.nodes.tolist() for share in shares] == [[3], [9, 7]]
    assert [share.until.tolist() for share in shares if share.until is not None] == [[30], [90, 70]]
    assert [share.tree.tolist() for share in shares if share.tree is not None] == [[2], [1, 3]]


def test_the_first_id_without_an_owner_is_found() -> None:
    assert first_outside(torch.tensor([2, 11]), OWNED) == -1
    assert first_outside(torch.tensor([2, 12, 1]), OWNED) == 1
    assert first_outside(torch.tensor([], dtype=torch.int64), OWNED) == -1


@given(
    st.sets(st.integers(0, 599)), st.lists(st.integers(0, 599)), st.sampled_from([torch.int32, torch.int64])
)
def test_an_id_finds_its_position_among_those_kept(
    kept: set[int], wanted: list[int], dtype: torch.dtype
) -> None:
    ids = sorted(kept)
    slots = IdSlots.of(torch.tensor(ids, dtype=torch.int64), 600)
    found = slots.find(torch.tensor(wanted, dtype=dtype))
    assert found.dtype == torch.int64
    assert found.tolist() == [ids.index(id_) if id_ in kept else -1 for id_ in wanted]


def test_all_ids_of_whole_blocks_may_be_kept() -> None:
    everything = torch.arange(3 * 128)
    assert torch.equal(IdSlots.of(everything, everything.numel()).find(everything), everything)


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 1000])
def test_it_takes_as_many_bytes_as_it_says(count: int) -> None:
    slots = IdSlots.of(torch.arange(0, count, 3), count)
    assert slots.places.nbytes + slots.first_slots.nbytes == IdSlots.bytes_for(count)


def test_ids_that_do_not_ascend_or_do_not_exist_are_refused() -> None:
    for ids in ([3, 2], [2, 2]):
        with pytest.raises(ValueError, match="must be ascending"):
            IdSlots.of(torch.tensor(ids), 5)
    with pytest.raises(ValueError, match=r"kept id 5 at position 1"):
        IdSlots.of(torch.tensor([2, 5]), 5)
    for wanted in (-1, 5):
        with pytest.raises(ValueError, match=rf"wanted id {wanted} at position 0"):
            IdSlots.of(torch.tensor([2]), 5).find(torch.tensor([wanted]))


@given(
    ids=st.lists(st.integers(0, 49), max_size=80),
    bounds=BOUNDS,
    own=st.integers(0, 23),
    capacity=st.integers(1, 60),
)
def test_slots_hold_the_ids_of_requests(ids: list[int], bounds: list[int], own: int, capacity: int) -> None:
    wanted, owners = torch.tensor(ids, dtype=torch.int64), len(bounds) - 1
    own %= owners
    found = peer_slots(wanted, torch.tensor(bounds), torch.tensor(bounds[:-1]), own, capacity)
    _, asked = remote_rows(wanted, bounds[own], bounds[own + 1])
    of_owners = [[i for i in asked.tolist() if bounds[q] <= i < bounds[q + 1]] for q in range(owners)]
    assert found.counts.tolist() == [len(of_owner) for of_owner in of_owners]
    for first, of_owner, slots in zip(bounds, of_owners, found.asked.tolist(), strict=False):
        expected = [i - first for i in of_owner[:capacity]]
        assert slots == expected + [0] * (capacity - len(expected))
    assert found.is_own.tolist() == [bounds[own] <= i < bounds[own + 1] for i in ids]
    assert all(0 <= place < max(owners * capacity, 50) for place in found.places.tolist())
    has_all = all(len(of_owner) <= capacity for of_owner in of_owners)
    for i, is_own, place in zip(ids, found.is_own.tolist(), found.places.tolist(), strict=True):
        if is_own:
            assert place == i - bounds[own]
        elif has_all:
            owner, number = divmod(place, capacity)
            assert of_owners[owner][number] == i


def test_nothing_is_read() -> None:
    bounds = torch.tensor([0, 20, 40])
    with counting() as reads:
        peer_slots(torch.arange(0, 40, 3), bounds, bounds[:-1], 1, 4)
    assert not reads
