"""The board of a run: each rank's place and error is read by the others, also when the store is gone."""

from __future__ import annotations

import threading

import pytest
from torch.distributed import HashStore

from khop.runtime.health_board import HealthBoard, Status, within


def test_ranks_read_the_places_and_errors_of_others() -> None:
    store = HashStore()
    boards = [HealthBoard(store, store, 2, "host-0:29500") for _ in range(2)]
    status = Status("host-1", "computing", 2, 3, count=5, beat=7)
    assert not boards[0].beat(0, Status("host-0"))
    assert not boards[1].beat(1, status)
    assert boards[0].statuses() == {0: Status("host-0"), 1: status}
    assert (status.place, Status("h", "ending", 1, -1).place) == ("computing in epoch 2, step 3", "ending")
    boards[1].tell_failure("OSError: no space")
    boards[0].tell_failure("KeyError: 'x'")
    assert boards[0].failures() == ["OSError: no space", "KeyError: 'x'"]
    boards[1].tell_broken()
    assert boards[0].beat(0, Status("host-0"))


class Gone:
    """A store behind a network that was cut off."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError("Connection reset by peer")


def test_a_store_that_is_gone_says_nothing() -> None:
    board = HealthBoard(Gone(), Gone(), 2, "host-0:29500")  # type: ignore[arg-type]
    assert (board.statuses(), board.failures()) == ({}, [])
    board.tell_failure("ended")
    with pytest.raises(RuntimeError, match="reset"):
        board.beat(0, Status("host-0"))


def test_a_call_is_waited_for_no_longer_than_allowed() -> None:
    released = threading.Event()
    assert not within(0.01, released.wait)
    released.set()
    assert within(60.0, released.wait)
    with pytest.raises(KeyError, match="own"):
        within(60.0, lambda: {}["own"])
