"""Calls that end because their other side is silent, or because they are no longer wanted.

The request that a thread works for.

A connection is ended by the address of its other side.

The requests of a token are bounded in rate; those of others are not affected.
"""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from khop.servers.call_timeouts import (
    Call,
    Caller,
    CallTimeouts,
    End,
    present_caller,
    shut_down,
    working_for,
)


def test_a_silent_call_is_cancelled_and_one_with_signs_of_life_is_not() -> None:
    silence, silent, heard = CallTimeouts(), threading.Event(), threading.Event()
    with silence.watching(heard.set, 1.5, None) as living, silence.watching(silent.set, 0.3, None) as dead:
        for _ in range(17):
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


def test_a_thread_knows_its_caller_while_it_works_and_no_other_thread_does() -> None:
    caller = Caller(threading.Event(), 1.0)
    with ThreadPoolExecutor(1) as other:
        assert working_for(caller, lambda: (present_caller(), other.submit(present_caller).result())) == (
            caller,
            None,
        )
    assert present_caller() is None


def test_a_caller_is_forgotten_after_an_error() -> None:
    def fail() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        working_for(Caller(threading.Event(), 1.0), fail)
    assert present_caller() is None


@pytest.mark.parametrize(("host", "form"), [("127.0.0.1", "ipv4:127.0.0.1:{}"), ("::1", "ipv6:%5B::1%5D:{}")])
def test_the_connection_to_a_peer_ends_and_others_stay(host: str, form: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection((host, port)) as one, socket.create_connection((host, port)) as other:
            (of_one, _), (of_other, _) = listening.accept(), listening.accept()
            with of_one, of_other:
                shut_down(form.format(one.getsockname()[1]))
                one.settimeout(10)
                assert one.recv(1) == b""
                of_other.sendall(b"still")
                assert other.recv(5) == b"still"


def test_a_peer_that_is_gone_is_no_error() -> None:
    shut_down("ipv4:127.0.0.1:1")
