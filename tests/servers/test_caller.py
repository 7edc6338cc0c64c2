"""The request that a thread works for."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from khop.servers.caller import Caller, present_caller, working_for


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
