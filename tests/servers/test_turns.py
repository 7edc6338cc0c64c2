"""Turns of clients at a server."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from khop.servers.errors import Busy, GoingAway
from khop.servers.turns import Room, Stage, Turn, Turns


def test_clients_are_served_in_turn_whatever_they_ask() -> None:
    turns = Turns(Room(at_once=1))
    with ExitStack() as stack:
        asked = [stack.enter_context(turns.turn("greedy")) for _ in range(5)]
        asked += [stack.enter_context(turns.turn("other")) for _ in range(2)]
        served = []
        for _ in range(7):
            (turn,) = (turn for turn in asked if turn.stage is Stage.MAKING)
            served.append(turn.client)
            _end(turns, turn)
    assert served == ["greedy", "greedy", "other", "greedy", "other", "greedy", "greedy"]
    assert turns.empty(0)


def _end(turns: Turns, turn: Turn) -> None:
    with turns._changed:
        turns._begun.discard(turn)
        turn.stage = Stage.SENDING
        turns._admit()


def test_no_more_batches_are_made_at_once_than_there_is_room_for() -> None:
    turns = Turns(Room(at_once=2))
    with ExitStack() as stack:
        asked = [stack.enter_context(turns.turn(f"client {number}")) for number in range(5)]
        assert [turn.stage for turn in asked] == [Stage.MAKING] * 2 + [Stage.WAITING] * 3
        assert turns.wait(asked[1], 0)
        assert not turns.wait(asked[2], 0)
        assert turns.counts() == {"waiting": 3, "making": 2, "sending": 0}
    assert turns.empty(0)


def test_a_client_that_does_not_read_gets_no_further_batches_made_and_blocks_nobody() -> None:
    turns = Turns(Room(at_once=1, unsent=2))
    with ExitStack() as stack:
        slow = [stack.enter_context(turns.turn("slow")) for _ in range(3)]
        for turn in slow[:2]:
            assert turns.wait(turn, 0)
            turns.made(turn)
        assert not turns.wait(slow[2], 0)
        with turns.turn("other") as turn:
            assert turns.wait(turn, 0)


def test_full_queues_answer_busy() -> None:
    turns = Turns(Room(at_once=1, waiting=3, waiting_per_client=2))
    with ExitStack() as stack:
        for client in ("a", "a", "a"):  # one is made, two wait
            stack.enter_context(turns.turn(client))
        with pytest.raises(Busy, match="2 of this client"), turns.turn("a"):
            pass
        stack.enter_context(turns.turn("b"))
        with pytest.raises(Busy, match="3 requests waiting"), turns.turn("c"):
            pass
    assert turns.empty(0)


def test_draining_finishes_what_waits_and_takes_nothing_new() -> None:
    turns = Turns(Room(at_once=1))
    with ExitStack() as stack:
        first, second = (stack.enter_context(turns.turn("a")) for _ in range(2))
        turns.drain()
        assert turns.is_draining
        assert not turns.empty(0)
        with pytest.raises(GoingAway), turns.turn("a"):
            pass
        turns.made(first)
        assert turns.wait(second, 0)
    assert turns.empty(0)


def test_room_is_of_whole_numbers() -> None:
    with pytest.raises(ValueError, match="at_once 0"):
        Room(at_once=0)
