"""Calls that end because their other side is silent, or because they are no longer wanted."""

from __future__ import annotations

import threading

from khop.servers.call_timeouts import Call, CallTimeouts, End


def test_a_silent_call_is_cancelled_and_one_with_signs_of_life_is_not() -> None:
    silence, silent, heard = CallTimeouts(), threading.Event(), threading.Event()
    with silence.watching(heard.set, 0.6, None) as living, silence.watching(silent.set, 0.3, None) as dead:
        for _ in range(10):
            living.heard()
            threading.Event().wait(0.1)
        assert silent.is_set()
        assert dead.ended is End.TIMED_OUT
        assert not heard.is_set()
        assert living.ended is None


def test_a_call_that_is_not_wanted_is_cancelled() -> None:
    cancelled, stop = threading.Event(), threading.Event()
    with CallTimeouts().watching(cancelled.set, 1000, stop) as call:
        stop.set()
        assert cancelled.wait(10)
        assert call.ended is End.STOPPED


def test_a_call_that_cannot_be_cancelled_leaves_the_others_watched() -> None:
    def fails() -> None:
        raise OSError("cannot be cancelled")

    timeouts, cancelled = CallTimeouts(), threading.Event()
    with timeouts.watching(fails, 0.05, None) as call, timeouts.watching(cancelled.set, 0.4, None):
        assert cancelled.wait(10)
        assert call.ended is End.TIMED_OUT


def test_a_call_is_due_after_its_silence() -> None:
    call = Call(lambda: None, 5, None, last=100.0)
    assert call.due(104.9) is None
    assert call.due(105.1) is End.TIMED_OUT
