"""FairQueue of clients at a server."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from khop.servers.errors import Busy, GoingAway
from khop.servers.fair_queue import Client, FairQueue, QueuedRequest, QueueLimits, Stage


def one(owner: str) -> Client:
    """A client with one connection."""
    return Client(owner, owner)


def test_clients_are_served_in_turn_whatever_they_ask() -> None:
    queue = FairQueue(QueueLimits(at_once=1))
    with ExitStack() as stack:
        asked = [stack.enter_context(queue.queued(one("greedy"))) for _ in range(5)]
        asked += [stack.enter_context(queue.queued(one("other"))) for _ in range(2)]
        served = []
        for _ in range(7):
            (queued,) = (queued for queued in asked if queued.stage is Stage.MAKING)
            served.append(queued.client.owner)
            _end(queue, queued)
    assert served == ["greedy", "greedy", "other", "greedy", "other", "greedy", "greedy"]
    assert queue.empty(0)


def test_turns_are_of_owners_however_many_connections_one_opens() -> None:
    queue = FairQueue(QueueLimits(at_once=1))
    with ExitStack() as stack:
        greedy = [Client("greedy", f"connection {number}") for number in range(4)]
        asked = [stack.enter_context(queue.queued(client)) for client in (*greedy, *greedy)]
        asked += [stack.enter_context(queue.queued(one("other"))) for _ in range(3)]
        served = []
        for _ in range(11):
            (queued,) = (queued for queued in asked if queued.stage is Stage.MAKING)
            served.append(queued.client)
            _end(queue, queued)
    assert [client.owner for client in served[:7]] == ["greedy", *["greedy", "other"] * 3]
    assert [client for client in served if client.owner == "greedy"] == greedy * 2
    assert queue.empty(0)


def test_an_owner_has_bounds_over_all_its_connections() -> None:
    queue = FairQueue(QueueLimits(at_once=1, unsent_per_owner=3, waiting_per_owner=4))
    with ExitStack() as stack:
        unread = [stack.enter_context(queue.queued(Client("a", str(number)))) for number in range(3)]
        for queued in unread:
            assert queue.wait(queued, 0)
            queue.made(queued)
        waiting = [stack.enter_context(queue.queued(Client("a", str(number)))) for number in range(4)]
        assert [queued.stage for queued in waiting] == [Stage.WAITING] * 4
        with pytest.raises(Busy, match="4 of a"), queue.queued(Client("a", "new")):
            pass
        with queue.queued(one("b")) as queued:
            assert queue.wait(queued, 0)
    assert queue.empty(0)


def _end(queue: FairQueue, queued: QueuedRequest) -> None:
    with queue._changed:
        queue._begun.discard(queued)
        queued.stage = Stage.SENDING
        queue._admit()


def test_no_more_batches_are_made_at_once_than_there_is_room_for() -> None:
    queue = FairQueue(QueueLimits(at_once=2))
    with ExitStack() as stack:
        asked = [stack.enter_context(queue.queued(one(f"client {number}"))) for number in range(5)]
        assert [queued.stage for queued in asked] == [Stage.MAKING] * 2 + [Stage.WAITING] * 3
        assert queue.wait(asked[1], 0)
        assert not queue.wait(asked[2], 0)
        assert queue.counts() == {"waiting": 3, "making": 2, "sending": 0}
    assert queue.empty(0)


def test_a_client_that_does_not_read_gets_no_further_batches_made_and_blocks_nobody() -> None:
    queue = FairQueue(QueueLimits(at_once=1, unsent=2))
    with ExitStack() as stack:
        slow = [stack.enter_context(queue.queued(one("slow"))) for _ in range(3)]
        for queued in slow[:2]:
            assert queue.wait(queued, 0)
            queue.made(queued)
        assert not queue.wait(slow[2], 0)
        with queue.queued(one("other")) as queued:
            assert queue.wait(queued, 0)


def test_full_queues_answer_busy() -> None:
    queue = FairQueue(QueueLimits(at_once=1, waiting=3, waiting_per_client=2))
    with ExitStack() as stack:
        for client in ("a", "a", "a"):  # one is made, two wait
            stack.enter_context(queue.queued(one(client)))
        with pytest.raises(Busy, match="2 of this client"), queue.queued(one("a")):
            pass
        stack.enter_context(queue.queued(one("b")))
        with pytest.raises(Busy, match="3 requests waiting"), queue.queued(one("c")):
            pass
    assert queue.empty(0)


def test_bytes_of_requests_are_bounded_for_each_owner_and_in_all() -> None:
    queue = FairQueue(QueueLimits(request_bytes=10, request_bytes_per_owner=6))
    with ExitStack() as stack:
        stack.enter_context(queue.admitted("a", 4))
        with pytest.raises(Busy, match="4 of a, and no room for 3 more"), queue.admitted("a", 3):
            pass
        stack.enter_context(queue.admitted("b", 6))
        with pytest.raises(Busy, match="10 bytes of requests, 0 of c"), queue.admitted("c", 1):
            pass
        stack.enter_context(queue.admitted("server", 0))
        assert not queue.empty(0)
    assert queue.empty(0)
    with queue.admitted("a", 6):
        pass


def test_draining_finishes_what_waits_and_takes_nothing_new() -> None:
    queue = FairQueue(QueueLimits(at_once=1))
    with ExitStack() as stack:
        first, second = (stack.enter_context(queue.queued(one("a"))) for _ in range(2))
        queue.drain()
        assert queue.is_draining
        assert not queue.empty(0)
        with pytest.raises(GoingAway), queue.queued(one("a")):
            pass
        queue.made(first)
        assert queue.wait(second, 0)
    assert queue.empty(0)


def test_room_is_of_whole_numbers() -> None:
    with pytest.raises(ValueError, match="at_once 0"):
        QueueLimits(at_once=0)
