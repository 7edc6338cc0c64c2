"""Requests to several servers: whom to ask, how long to wait, whom to ask again. Knows no network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TypeVar

from khop.errors import PeerLost
from khop.servers.access import Limits
from khop.servers.addresses import Address
from khop.servers.connections import Clock, Connections, Dial, MachineClock, start_thread
from khop.servers.errors import Cancelled, MachineFailed, Retry, ServerError
from khop.servers.server_list import Server, ServerList, State
from khop.servers.transport import Answer, Buffer, CallContext, Connection

Received = TypeVar("Received")
_STOP_POLL_S = 0.2  # how often a waiting request looks at its stop event


@dataclass
class _Waiting:
    """A request until it is answered."""

    context: CallContext
    limits: Limits
    begun: float
    alive: float  # the last time at which a server is known to have worked on it
    retries: int = 0
    avoided: set[Server] = field(default_factory=set)  # failed in this round
    machines: dict[Server, MachineFailed] = field(default_factory=dict)
    first_piece: float | None = None
    wire_bytes: int = 0

    def check_stop(self) -> None:
        """Raise Cancelled if the client no longer wants the answer."""
        if self.context.stop is not None and self.context.stop.is_set():
            raise Cancelled(f"{subject(self.context)}: no longer wanted")

    def failed(self, server: Server, error: ServerError, began: float, now: float) -> None:
        """Count a failed attempt. One that lasted longer than silence may has shown heartbeats."""
        self.retries += 1
        self.avoided.add(server)
        # A server without an owner of another part waits for one under heartbeats: that is no progress.
        if error.retry is not Retry.LATER and now - began > 1.5 * self.limits.attempt_s:
            self.alive = max(self.alive, now - self.limits.attempt_s)


class Pool:
    """Several servers of the same graph as one (an Exchange). Threads may share it.

    A request goes to the server with the fewest requests in flight. If it fails in a way that another attempt
    may mend, another server is asked. A server that was not reached, or was silent for `attempt_s`, gets no
    request until it has answered a probe, and its name is resolved again. PeerLost after `deadline_s` without
    a heartbeat.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        dial: Dial,
        limits: Limits,
        identity: Callable[[bytes], str],  # of the graph, from the description of a server
        clock: Clock | None = None,
        background: Callable[[Callable[[], None]], None] = start_thread,
    ) -> None:
        self._given, self._limits = tuple(addresses), limits
        self._clock = clock or MachineClock()
        self._connections = Connections(addresses, dial, identity, self._clock, background)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of the servers, as given."""
        return tuple(map(str, self._given))

    @property
    def counts(self) -> Mapping[str, int]:
        """Attempts, retries and busy answers so far."""
        return dict(self._connections.server_list.counts)

    def describe(self) -> bytes:
        """Return the description of the graph, of any server that answers."""
        return self._answer(
            CallContext("graph"), lambda connection, _: connection.describe(self._limits.attempt_s)
        ).value

    def ask(
        self, context: CallContext, request: bytes, receive: Callable[[Iterator[Buffer]], Received]
    ) -> Answer[Received]:
        """Send the request to a server; return the answer that `receive` makes of header and pieces."""

        def call(connection: Connection, waiting: _Waiting) -> Received:
            left = self._left(waiting)
            stream = connection.batch(
                request, min(waiting.limits.attempt_s, left), float("inf"), context.stop
            )
            with closing(stream):  # type: ignore[type-var]
                return receive(_counted(stream, waiting, self._clock))

        return self._answer(context, call)

    def close(self) -> None:
        """Close all connections; requests under way end with an error."""
        self._connections.close()

    def _answer(
        self, context: CallContext, call: Callable[[Connection, _Waiting], Received]
    ) -> Answer[Received]:
        now = self._clock.now()
        waiting = _Waiting(context, context.limits or self._limits, now, now)
        while True:
            server, began = self._take(waiting), self._clock.now()
            connection = server.connection
            waiting.wire_bytes = 0
            try:
                if connection is None:
                    connection = self._connections.connected(
                        server, min(waiting.limits.attempt_s, self._left(waiting))
                    )
                value = call(connection, waiting)
            except ServerError as error:
                self._connections.failed(server, connection, error)
                if error.retry is Retry.NEVER:
                    raise
                waiting.failed(server, error, began, self._clock.now())
                _check_machines(server, error, waiting, self._connections.server_list)
                continue
            finally:
                with self._connections.changed:
                    server.in_flight -= 1
                    self._connections.changed.notify_all()
            with self._connections.changed:
                server.answered()
            first = self._clock.now() if waiting.first_piece is None else waiting.first_piece
            return Answer(
                value,
                str(server),
                self._given.index(server.address),
                waiting.retries,
                waiting.wire_bytes,
                first - waiting.begun,
            )

    def _left(self, waiting: _Waiting) -> float:
        return max(0.05, waiting.alive + waiting.limits.deadline_s - self._clock.now())

    def _take(self, waiting: _Waiting) -> Server:
        """Wait for a server that may be asked, and count the request."""
        with self._connections.changed:
            while True:
                waiting.check_stop()
                if self._connections.closed:
                    raise Cancelled(f"{subject(waiting.context)}: the connection to the servers was closed")
                now = self._clock.now()
                _check_refused(self._connections.server_list)
                if now >= waiting.alive + waiting.limits.deadline_s:
                    raise self._lost(waiting)
                server = self._connections.server_list.choose(now, waiting.avoided)
                if server is not None:
                    if server in waiting.avoided:
                        waiting.avoided.clear()  # every one has failed once: another round
                    self._connections.server_list.take(server)
                    return server
                until = min(
                    waiting.alive + waiting.limits.deadline_s, self._connections.server_list.next_change()
                )
                pause = until - now if waiting.context.stop is None else min(_STOP_POLL_S, until - now)
                self._clock.wait(self._connections.changed, pause)

    def _lost(self, waiting: _Waiting) -> PeerLost:
        return PeerLost(
            f"{subject(waiting.context)}: no server has answered for {waiting.limits.deadline_s:g} s "
            f"({self._connections.server_list.reasons()}); start a server again, and continue a run "
            "with --resume"
        )


def subject(context: CallContext) -> str:
    """Return the words for a request in messages."""
    if context.words:
        return context.words
    if context.stage == "batch":
        return f"batch of epoch {context.epoch}, step {context.step}"
    return context.stage


def _counted(stream: Iterator[Buffer], waiting: _Waiting, clock: Clock) -> Iterator[Buffer]:
    for piece in stream:
        if waiting.first_piece is None:
            waiting.first_piece = clock.now()
        waiting.wire_bytes += len(piece)
        yield piece


def _check_refused(server_list: ServerList) -> None:
    """Raise the error of a server if none is left that could answer."""
    for server in server_list.servers:
        if server.error is not None and all(each.state is State.REFUSED for each in server_list.servers):
            raise server.error


def _check_machines(server: Server, error: ServerError, waiting: _Waiting, server_list: ServerList) -> None:
    """Raise the error of a machine once each server has failed so: waiting would not mend it."""
    if isinstance(error, MachineFailed):
        waiting.machines[server] = error
        if waiting.machines.keys() >= set(server_list.usable()):
            raise error
