"""Errors between clients and servers, with the codes that they are sent as.

Each error states which servers a client may retry.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class Retry(StrEnum):
    """Use of another attempt after an error."""

    NEVER = "never"  # every server would answer the same
    ELSEWHERE = "elsewhere"  # another server may answer; this one is not asked for a while
    LATER = "later"  # the server is well, but has no room now


_CODES: dict[str, type[ServerError]] = {}


class ServerError(Exception):
    """A request without a batch as its answer. The text is a whole sentence for the user."""

    code: ClassVar[str]  # as it travels
    retry: ClassVar[Retry]

    def __init_subclass__(cls, *, code: str, retry: Retry = Retry.NEVER) -> None:
        """Register the error under its code."""
        super().__init_subclass__()
        cls.code, cls.retry = code, retry
        _CODES[code] = cls


class Unavailable(ServerError, code="unavailable", retry=Retry.ELSEWHERE):
    """The server was not reached, or the connection was lost."""


class TimedOut(ServerError, code="timed-out", retry=Retry.ELSEWHERE):
    """The server was silent for longer than an attempt may last."""


class GoingAway(ServerError, code="going-away", retry=Retry.ELSEWHERE):
    """The server is about to end: it finishes what it began and takes nothing new."""


class Busy(ServerError, code="busy", retry=Retry.LATER):
    """The server has as many requests waiting as it accepts."""


class PartLost(ServerError, code="part-lost", retry=Retry.LATER):
    """No owner of another part answers the server, which may be asked later."""


class MachineFailed(ServerError, OSError, code="machine", retry=Retry.ELSEWHERE):
    """The machine of the server failed: a file, a disk, its memory."""


class UnknownSettings(ServerError, code="unknown-settings"):
    """The server does not have the settings that a request names by their hash: send them again."""


class InvalidRequest(ServerError, ValueError, code="invalid"):
    """The request cannot be answered: its settings or seeds do not fit the graph."""


class TooLarge(ServerError, ValueError, code="too-large"):
    """The batch could be larger than the server allows."""


class WrongVersion(ServerError, ValueError, code="wrong-version"):
    """Client and server have different versions of the messages or of the draws."""


class WrongGraph(ServerError, ValueError, code="wrong-graph"):
    """The server has another graph than the client was connected to."""


class Unauthenticated(ServerError, PermissionError, code="unauthenticated"):
    """The token or the certificate is missing or wrong."""


class NotAllowed(ServerError, PermissionError, code="not-allowed"):
    """The token is known and does not allow this."""


class Cancelled(ServerError, code="cancelled"):
    """The client no longer wants the answer."""


class InvalidAnswer(ValueError):
    """A message of a server that is not what its header or the request says."""


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
        f"{type(error).__name__} on the server: {error}; its log has the traceback, check custom samplers "
        "and rules first"
    )
