"""Slots in messages of fixed size hold the ids that requests of exact sizes hold, and nothing is read."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.owners import remote_rows
from khop.kernels.peer_slots import peer_slots
from support.host_reads import counting

BOUNDS = st.sampled_from([[0, 50], [0, 20, 20, 35, 50], [0, 0, 50], [0, *range(3, 50, 2), 50]])


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
