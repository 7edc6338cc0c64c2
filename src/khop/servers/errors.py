"""Errors between clients and servers, with the codes that they are sent as.

Each error states which servers a client may retry.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from khop.errors import is_out_of_memory


class Retry(StrEnum):
    """Servers that may be retried after an error."""

    NEVER = "never"  # every server would return the same error
    ELSEWHERE = "elsewhere"  # another server may answer; this one is skipped for a while
    LATER = "later"  # the server works, but is busy
    OTHERS = "others"  # this server does not belong to the others, or refuses the client: not used again


_NO_THREAD = "can't start new thread"  # a RuntimeError of Python
_CODES: dict[str, type[ServerError]] = {}


class ServerError(Exception):
    """Failure of a request. The text is a complete sentence for the user."""

    code: ClassVar[str]  # in messages
    retry: ClassVar[Retry]

    def __init_subclass__(cls, *, code: str, retry: Retry = Retry.NEVER) -> None:
        """Register the error under its code."""
        super().__init_subclass__()
        cls.code, cls.retry = code, retry
        _CODES[code] = cls


class Unavailable(ServerError, code="unavailable", retry=Retry.ELSEWHERE):
    """The server was not reached, or the connection was lost."""


class TimedOut(ServerError, code="timed-out", retry=Retry.ELSEWHERE):
    """The server did not respond within the time limit of an attempt."""


class GoingAway(ServerError, code="going-away", retry=Retry.ELSEWHERE):
    """The server is shutting down: it finishes started requests and refuses new ones."""


class Busy(ServerError, code="busy", retry=Retry.LATER):
    """The server's request queue is full."""


class PartLost(ServerError, code="part-lost", retry=Retry.LATER):
    """The server cannot reach any owner of another part; it may be retried later."""


class MachineFailed(ServerError, OSError, code="machine", retry=Retry.ELSEWHERE):
    """The server's machine failed: a file, a disk, or memory."""


class UnknownSettings(ServerError, code="unknown-settings"):
    """The server does not know the settings whose hash the request has: send them again."""


class InvalidRequest(ServerError, ValueError, code="invalid"):
    """The request cannot be answered: its settings or seeds do not fit the graph."""


class TooLarge(ServerError, ValueError, code="too-large"):
    """The batch could be larger than the server allows."""


class WrongVersion(ServerError, ValueError, code="wrong-version", retry=Retry.OTHERS):
    """Client and server have different versions of the messages or of the draws."""


class WrongGraph(ServerError, ValueError, code="wrong-graph", retry=Retry.OTHERS):
    """The server has a different graph from the one that the client connected to."""


class Unauthenticated(ServerError, PermissionError, code="unauthenticated", retry=Retry.OTHERS):
    """The token or the certificate is missing or wrong."""


class NotAllowed(ServerError, PermissionError, code="not-allowed", retry=Retry.OTHERS):
    """The token is known and does not allow this."""


class Cancelled(ServerError, code="cancelled"):
    """The client no longer wants the answer."""


class InvalidAnswer(ValueError):
    """A server message that does not match its header or the request."""


def of_code(code: str, text: str) -> ServerError:
    """Return the error that a message names; an unknown code is an InvalidRequest."""
    return _CODES.get(code, InvalidRequest)(text)


def as_server_error(error: Exception) -> ServerError:
    """Return the error to send for an exception raised while a batch was made.

    ValueError is about the request; OSError, and too little memory or too few threads, about the machine. Any
    other exception is a bug, which every server would repeat.
    """
    if isinstance(error, ServerError):
        return error
    if isinstance(error, ValueError):
        return InvalidRequest(str(error))
    if isinstance(error, OSError) or is_out_of_memory(error) or str(error) == _NO_THREAD:
        return MachineFailed(f"{type(error).__name__}: {error}")
    return InvalidRequest(
        f"{type(error).__name__} on the server: {error}; its log has the traceback, check custom samplers "
        "and rules first"
    )
