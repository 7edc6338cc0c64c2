"""Protocols between clients of servers and the network: bytes in, bytes out, errors by code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from khop.servers.access import Limits

Buffer = bytes | memoryview  # contiguous
BEATS = 4  # heartbeats within an attempt
Received = TypeVar("Received")


@dataclass(frozen=True)
class CallContext:
    """The subject of a request, for messages and logs, and the event that ends the wait for its answer."""

    stage: str  # "batch", "graph", ...
    epoch: int = 0
    step: int = 0
    stop: threading.Event | None = None  # once set, the request is dropped, with Cancelled
    limits: Limits | None = None  # None: those of the exchange
    words: str = ""  # for messages, where epoch and step do not name the request


@dataclass(frozen=True)
class Answer(Generic[Received]):
    """A decoded answer, and the cost of getting it."""

    value: Received
    server: str  # address, with the machine behind a name
    place: int  # of the server's address in the addresses of the exchange, from 0
    retries: int  # attempts before the one that was answered
    wire_bytes: int  # of the answer
    wait_s: float  # from the first attempt to the first piece of the answer


class Connection(Protocol):
    """A connection to one server. Threads may share it; errors are ServerErrors."""

    @property
    def address(self) -> str:
        """Address of the server."""
        ...

    def describe(self, timeout_s: float) -> bytes:
        """Return the description of the server's graph."""
        ...

    def batch(
        self, request: bytes, attempt_s: float, deadline_s: float, stop: threading.Event | None
    ) -> Iterator[Buffer]:
        """Yield the header of the answer, then its pieces.

        TimedOut after `attempt_s` without a heartbeat, or after `deadline_s` in all. `close()` of the
        iterator, or `stop`, cancels the request on the server.
        """
        ...

    def status(self, timeout_s: float) -> bytes:
        """Return the counters of the server, in JSON."""
        ...

    def close(self) -> None:
        """Close the connection; requests under way end with an error."""
        ...


class Exchange(Protocol):
    """One or several servers of the same graph, any of which may answer. Threads may share it."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of the servers, as given."""
        ...

    def describe(self) -> bytes:
        """Return the description of the graph, of any server that answers; PeerLost if none does."""
        ...

    def ask(
        self, context: CallContext, request: bytes, receive: Callable[[Iterator[Buffer]], Received]
    ) -> Answer[Received]:
        """Send the request to a server and return the answer that `receive` makes of header and pieces.

        If an attempt fails by an error that another attempt may mend, `receive` is called again, with the
        answer of the next one. PeerLost if no server has answered within the deadline.
        """
        ...

    def close(self) -> None:
        """Close all connections."""
        ...
