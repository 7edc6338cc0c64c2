"""Errors between clients and servers: each has a code that travels, and states who may be asked next."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class Retry(StrEnum):
    """Use of another attempt after an error."""

    NEVER = "never"  # every server would answer the same
    ELSEWHERE = "elsewhere"  # another server may answer; this one is not asked for a while
    LATER = "later"  # the server is well, but has no limits now


class ServerError(Exception):
    """A request without a batch as its answer. The text is a whole sentence for the user."""

    code: ClassVar[str]
    retry: ClassVar[Retry] = Retry.NEVER


class Unavailable(ServerError):
    """The server was not reached, or the connection was cut."""

    code = "unavailable"
    retry = Retry.ELSEWHERE


class TimedOut(ServerError):
    """The server was silent for longer than an attempt may last."""

    code = "timed-out"
    retry = Retry.ELSEWHERE


class GoingAway(ServerError):
    """The server is about to end: it finishes what it began and takes nothing new."""

    code = "going-away"
    retry = Retry.ELSEWHERE


class Busy(ServerError):
    """The server has as many requests waiting as it accepts."""

    code = "busy"
    retry = Retry.LATER


class MachineFailed(ServerError, OSError):
    """The machine of the server failed: a file, a disk, its memory."""

    code = "machine"
    retry = Retry.ELSEWHERE


class UnknownSettings(ServerError):
    """The server does not have the settings that a request names by their hash: send them again."""

    code = "unknown-settings"


class InvalidRequest(ServerError, ValueError):
    """The request cannot be answered: its settings or seeds do not fit the graph."""

    code = "invalid"


class TooLarge(ServerError, ValueError):
    """The batch could be larger than the server allows."""

    code = "too-large"


class WrongVersion(ServerError, ValueError):
    """Client and server have different versions of the messages or of the draws."""

    code = "wrong-version"


class WrongGraph(ServerError, ValueError):
    """The server has another graph than the client was connected to."""

    code = "wrong-graph"


class Unauthenticated(ServerError, PermissionError):
    """The token or the certificate is missing or wrong."""

    code = "unauthenticated"


class NotAllowed(ServerError, PermissionError):
    """The token is known and does not allow this."""

    code = "not-allowed"


class Cancelled(ServerError):
    """The client no longer wants the answer."""

    code = "cancelled"


class InvalidAnswer(ValueError):
    """A message of a server that is not what its header or the request says."""


_CODES: dict[str, type[ServerError]] = {
    error.code: error
    for error in (
        Unavailable,
        TimedOut,
        GoingAway,
        Busy,
        MachineFailed,
        UnknownSettings,
        InvalidRequest,
        TooLarge,
        WrongVersion,
        WrongGraph,
        Unauthenticated,
        NotAllowed,
        Cancelled,
    )
}


def of_code(code: str, text: str) -> ServerError:
    """Return the error that a message names; one of an unknown code is an invalid request."""
    return _CODES.get(code, InvalidRequest)(text)


def as_server_error(error: Exception) -> ServerError:
    """Return the error to send for an exception of the code that makes batches.

    ValueError is about the request, OSError and MemoryError about the machine. Any other one is a mistake in
    code, which every server would repeat.
    """
    if isinstance(error, ServerError):
        return error
    if isinstance(error, ValueError):
        return InvalidRequest(str(error))
    if isinstance(error, OSError | MemoryError):
        return MachineFailed(f"{type(error).__name__}: {error}")
    return InvalidRequest(
        f"{type(error).__name__} on the server: {error}; its log has the traceback, and a sampler or rule "
        "of your own is the first place to look"
    )
