"""The request that a thread of a server works for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class Caller:
    """The sender of a request, as the code knows it that asks other servers meanwhile."""

    gone: threading.Event  # set once it no longer waits
    patience_s: float  # longest wait for other servers: an attempt of the sender


_CALLER: ContextVar[Caller | None] = ContextVar("khop_caller", default=None)


def present_caller() -> Caller | None:
    """Return the sender that this thread works for; None outside of requests."""
    return _CALLER.get()


def working_for(caller: Caller, work: Callable[[], Value]) -> Value:
    """Do the work of a request on this thread."""
    token = _CALLER.set(caller)
    try:
        return work()
    finally:
        _CALLER.reset(token)
