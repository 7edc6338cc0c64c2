"""What a rank says when a wait of its was in vain: who is missing, where it was last, who waited where.

The board of a run: each rank's place and error is read by the others, also when the store is gone.

Types of torch are those of its public names, where it has these.
"""

from __future__ import annotations

import threading

import pytest
import torch
from torch import distributed
from torch.distributed import HashStore

from khop.distributed.processes import watch
from khop.distributed.processes import watch as torch_types
from khop.distributed.processes.watch import BEAT_S, GRACE_S, SILENT_BEATS, HealthBoard, Status, within
from support.watched_ranks import ranks


def test_a_rank_that_works_but_does_not_come_is_named_with_its_place() -> None:
    with ranks(3) as (first, second, third):
        for each in (first, second, third):
            each.at("computing", 2, 3)
        first.at("exchanging losses", 2, 3)
        third.at("exchanging losses", 2, 3)
        assert first.report(4.0) == (
            "rank 1 (host host-1) did not arrive within 4 s; last seen computing in epoch 2, step 3. "
            "Ranks 0, 2 waited exchanging losses in epoch 2, step 3"
        )


def test_a_rank_that_is_behind_all_others_says_so() -> None:
    with ranks(3) as (first, second, third):
        for each in (second, third):
            each.at("computing", 2, 3)
        assert second.report(4.0).startswith("rank 0 (host host-0) did not arrive")
        assert first.report(4.0) == (
            "rank 0 (host host-0) waited 4 s, although all others had arrived; "
            "last seen starting in epoch 0, step 0. Ranks 1, 2 waited computing in epoch 2, step 3"
        )


def test_a_rank_that_is_silent_is_named_first() -> None:
    with ranks(2, silent=(1,)) as (first, _):
        first.at("exchanging gradients", 0, 5)
        assert first.report(4.0) == (
            "rank 1 (host host-1) no longer responds; last seen starting in epoch 0, step 0. "
            "Rank 0 waited exchanging gradients in epoch 0, step 5"
        )


def test_the_error_of_a_rank_that_failed_is_what_the_others_say() -> None:
    with ranks(2, silent=(0, 1)) as (first, second):
        second.at("computing the loss", 1, 2)
        second.failed("KeyError: 'mine'")
        assert first.report(4.0) == (
            "rank 1 (host host-1) failed computing the loss in epoch 1, step 2: KeyError: 'mine'"
        )


@pytest.mark.parametrize(
    ("silent", "stays_s"),
    [((0, 1, 2), SILENT_BEATS * BEAT_S), ((0, 1), GRACE_S / 2)],
    ids=["all are gone", "one lives"],
)
def test_the_host_of_the_store_stays_until_the_others_are_gone(
    silent: tuple[int, ...], stays_s: float
) -> None:
    with ranks(3, silent) as (first, _, _):
        begun = watch.time.monotonic()
        first.outlast()
        assert stays_s <= watch.time.monotonic() - begun < stays_s + SILENT_BEATS * BEAT_S


def test_a_lost_rank_is_not_waited_for() -> None:
    with ranks(2, silent=(1,)) as (first, _):
        assert "rank 1 (host host-1) no longer responds" in first.report(4.0)
        begun = watch.time.monotonic()
        first.outlast()
        assert watch.time.monotonic() == begun


def test_a_rank_that_leaves_does_not_wait_for_a_reason() -> None:
    """Its lanes may still find out that the others are gone, which must not hold it up."""
    with ranks(2, silent=(0, 1)) as (first, _):
        first.start()
        first.close()
        begun = watch.time.monotonic()
        assert first.report(4.0)
        assert watch.time.monotonic() == begun


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


def test_stores_and_buckets_are_torchs() -> None:
    for name in ("PrefixStore", "Store", "TCPStore", "GradBucket"):
        own = getattr(torch_types, name)
        assert own is getattr(distributed, name)
        assert own.__module__.startswith(torch.__name__)
