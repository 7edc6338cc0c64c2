"""Ranks find those of their own attempt, whatever attempts before have left in the store."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations

import pytest
from torch.distributed import HashStore

from khop.errors import PeerLost
from khop.runtime.rendezvous_point import Rendezvous, Round, arrive


def rank(number: int, attempt: int = 0) -> Rendezvous:
    return Rendezvous(f"node-{number}", f"10.0.0.{number}", attempt)


def arriving(store: HashStore, order: Sequence[int], attempts: Sequence[int] = (0, 0, 0)) -> list[Round]:
    """What each of three ranks finds when they come in this order."""
    with ThreadPoolExecutor(3) as pool:
        coming = {r: pool.submit(arrive, store, r, 3, rank(r, attempts[r]), 60.0) for r in order}
        return [coming[r].result() for r in range(3)]


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_ranks_rendezvous_in_any_order_and_again(order: Sequence[int]) -> None:
    store = HashStore()
    for number in (1, 2):
        first, *others = arriving(store, order)
        assert all(other == first for other in others)
        assert first.number == number
        assert first.attempt == number - 1
        assert [of_rank.host for of_rank in first.ranks.values()] == ["node-0", "node-1", "node-2"]


def test_an_incomplete_round_delays_no_later_one() -> None:
    store = HashStore()
    with pytest.raises(PeerLost):
        arrive(store, 0, 3, rank(0), 0.05)  # and is gone
    with pytest.raises(PeerLost):
        arrive(store, 2, 3, rank(2), 0.05)
    assert {met.number for met in arriving(store, (2, 1, 0))} == {2}


def test_launchers_that_count_differently_agree_on_the_most() -> None:
    """torchrun counts on each machine how often a process there has failed."""
    assert {met.attempt for met in arriving(HashStore(), (0, 1, 2), attempts=(0, 2, 1))} == {2}


@pytest.mark.parametrize("is_second_attempt", [False, True])
def test_missing_ranks_are_named_by_all(is_second_attempt: bool) -> None:
    store = HashStore()
    if is_second_attempt:
        arriving(store, (0, 1, 2))
    with pytest.raises(
        PeerLost, match=r"^ranks 0, 1 did not arrive within 0.05 s; those of 3 that did: 2 \(ho"
    ):
        arrive(store, 2, 3, rank(2), 0.05)
    store = HashStore()
    with pytest.raises(
        PeerLost, match=r"^ranks 1, 2 did not arrive within 0.05 s; those of 3 that did: 0 \(ho"
    ):
        arrive(store, 0, 3, rank(0), 0.05)
