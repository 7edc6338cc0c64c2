"""Client-side load balancing, timeouts, retries and health probes, independent of the transport.

A server is available, or failed until its next probe succeeds. Before gRPC connects, a plain connection
checks that the server is reachable, uses TLS, and has a valid certificate. gRPC reports all of these failures
as unavailable, and would retry a server with a wrong certificate until the deadline.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TypeVar
from weakref import ref

from khop.errors import PeerLost
from khop.servers.access import (
    Access,
    Address,
    Answer,
    Buffer,
    CallContext,
    Connection,
    Endpoint,
    Limits,
    resolved,
)
from khop.servers.errors import (
    Busy,
    Cancelled,
    GoingAway,
    MachineFailed,
    PartLost,
    Retry,
    ServerError,
    TimedOut,
    Unauthenticated,
    Unavailable,
    WrongGraph,
)

FIRST_PROBE_S = 0.1
LAST_PROBE_S = 0.5  # maximum interval between probes
FAILED_S = 1.0  # pause after a failure of a server's machine
FIRST_BUSY_S = 0.02
LAST_BUSY_S = 0.5
_REFUSED = (Retry.NEVER, Retry.OTHERS)  # errors of a connection after which it is not tried again


class ServerState(StrEnum):
    """Client-side state of a server."""

    NEW = "new"  # not connected yet
    READY = "ready"
    LOST = "lost"  # only probed
    REFUSED = "refused"  # another graph, or it does not know the token: not used again


@dataclass(eq=False)
class Server:
    """One machine that may answer, or an address that is not resolved yet."""

    address: Address
    endpoint: Endpoint | None = None
    connection: Connection | None = None
    state: ServerState = ServerState.NEW
    in_flight: int = 0
    asked: int = 0
    failures: int = 0  # since the last answer
    busy: int = 0  # since the last answer
    not_before: float = 0.0  # time of the next request or probe
    reason: str = ""  # of the last failure
    error: ServerError | None = None  # why it was refused
    is_untried: bool = True  # at an address as given, and has neither answered nor been lost yet

    def __str__(self) -> str:
        """Return the address."""
        return str(self.endpoint or self.address)

    def answered(self) -> None:
        """Reset the failure counters."""
        self.failures = self.busy = 0
        self.not_before = 0.0

    def lose(self, error: ServerError, now: float) -> None:
        """Stop using the server until a probe is answered."""
        self.state = ServerState.LOST
        self.connection = None
        self.is_untried = False
        self.not_before = now + min(LAST_PROBE_S, _longer(FIRST_PROBE_S, self.failures))
        self.failures += 1
        self.reason = str(error)

    def refuse(self, error: ServerError) -> None:
        """Never use the server again: it answers, but does not belong to these servers."""
        self.state, self.connection = ServerState.REFUSED, None
        self.error, self.reason = error, str(error)

    def found(self, connection: Connection) -> None:
        """Use the server from now on."""
        self.state, self.connection = ServerState.READY, connection
        self.answered()


@dataclass
class ServerList:
    """Client-side server states: available, failed, next probe. Not thread-safe: callers hold a lock."""

    servers: list[Server]
    counts: dict[str, int] = field(default_factory=lambda: {"attempts": 0, "retries": 0, "busy": 0})

    @classmethod
    def of(cls, addresses: Iterable[Address]) -> ServerList:
        """Return a list of unconnected servers at the addresses."""
        return cls([Server(address) for address in addresses])

    def usable(self) -> list[Server]:
        """Return the servers that may be used, now or after a pause."""
        return [server for server in self.servers if server.state in (ServerState.NEW, ServerState.READY)]

    def choose(self, now: float, avoided: Iterable[Server]) -> Server | None:
        """Return the next server: the one with the fewest requests in flight, then the fewest so far."""
        free = [server for server in self.usable() if server.not_before <= now]
        skipped = set(avoided)
        return min(free, key=lambda s: (s in skipped, s.in_flight, s.asked), default=None)

    def next_change(self) -> float:
        """Return the time of the next request to a busy server; infinity if none is busy."""
        return min((server.not_before for server in self.usable()), default=float("inf"))

    def take(self, server: Server) -> None:
        """Count a request that starts."""
        server.in_flight += 1
        server.asked += 1
        self.counts["attempts"] += 1

    def failed(self, server: Server, connection: Connection | None, error: ServerError, now: float) -> None:
        """Record a failed request. Failures of an earlier connection are ignored."""
        if error.retry is Retry.NEVER:
            return
        self.counts["retries"] += 1
        if error.retry is Retry.LATER:
            server.not_before = now + min(LAST_BUSY_S, _longer(FIRST_BUSY_S, server.busy))
            server.busy += 1
            self.counts["busy"] += 1
            server.reason = str(error)
        elif isinstance(error, MachineFailed):
            server.not_before = now + FAILED_S
            server.reason = str(error)
        elif server.connection is connection and server.state is not ServerState.REFUSED:
            if error.retry is Retry.OTHERS:
                server.refuse(error)
            else:
                server.lose(error, now)

    def place(self, server: Server, endpoints: Sequence[Endpoint]) -> Endpoint | None:
        """Assign the server a machine that its name resolves to, and add servers for further ones.

        Returns None if each machine of the name already has a server; this one is then removed.
        """
        is_first = server.endpoint is None
        others = {each.endpoint for each in self.servers if each is not server}
        free = [endpoint for endpoint in endpoints if endpoint not in others]
        if server.endpoint not in free:
            server.endpoint = free[0] if free else None
        if server.endpoint is None:
            self.servers = [each for each in self.servers if each is not server]
            return None
        rest = [endpoint for endpoint in free if endpoint != server.endpoint]
        self.servers += [Server(server.address, endpoint, is_untried=is_first) for endpoint in rest]
        return server.endpoint

    def reasons(self) -> str:
        """Return the servers, each with the reason for its last failure."""
        return "; ".join(map(_reason, self.servers))


def _reason(server: Server) -> str:
    reason = server.reason or "not asked"
    return reason if reason.startswith(str(server.address)) else f"{server}: {reason}"


def _longer(first_s: float, times: int) -> float:
    """Return a pause that doubles with each failure, up to its limit."""
    return first_s * 2.0 ** min(times, 32)


PROBE_S = 2.0  # longest wait for the answer to a probe


class Clock:
    """The clock of this machine; tests replace it."""

    def now(self) -> float:
        """Return `time.monotonic`."""
        return time.monotonic()

    def wait(self, changed: threading.Condition, seconds: float) -> None:
        """Wait for a notification."""
        changed.wait(seconds)


@dataclass(frozen=True)
class Dial:
    """Functions that reach servers. All errors are ServerErrors."""

    connect: Callable[[Endpoint, float], Connection]  # connects to a machine, within some seconds
    resolve: Callable[[Address], Sequence[Endpoint]] = resolved  # the machines behind an address, now


def start_thread(work: Callable[[], None]) -> None:
    """Run some work in a daemon thread."""
    threading.Thread(target=work, name="khop-probe", daemon=True).start()


class Connections:
    """The servers of a client, with their connections. Threads share it under `changed`."""

    def __init__(
        self,
        addresses: Sequence[Address],
        dial: Dial,
        identity: Callable[[bytes], str],  # of the graph, from the description of a server
        clock: Clock,
        background: Callable[[Callable[[], None]], None] = start_thread,
    ) -> None:
        self.server_list = ServerList.of(addresses)
        self.changed = threading.Condition()
        self.closed = False
        self.clock = clock
        self._dial, self._identity, self._background = dial, identity, background
        self._graph: str | None = None  # identity of the graph of the first server

    def close(self) -> None:
        """Close all connections; requests in progress end with an error."""
        with self.changed:
            self.closed = True
            connections = [server.connection for server in self.server_list.servers if server.connection]
            self.changed.notify_all()
        for connection in connections:
            connection.close()

    def connected(self, server: Server, timeout_s: float) -> Connection:
        """Connect to a server, or return the connection that another thread has just made."""
        try:
            connection = self._opened(server, timeout_s)
        except ServerError as error:
            if error.retry in _REFUSED:
                with self.changed:
                    server.refuse(error)
            raise
        return self._use(server, connection)

    def _use(self, server: Server, connection: Connection) -> Connection:
        """Share the connection, or use the one that another thread made first."""
        with self.changed:
            present = server.connection
            if present is None and not self.closed:
                server.found(connection)
                self.changed.notify_all()
                return connection
        connection.close()
        if present is None:
            raise Cancelled("the connection to the servers was closed")
        return present

    def _opened(self, server: Server, timeout_s: float) -> Connection:
        """Resolve the name of a server, connect, and check that it has the same graph as the others."""
        endpoints = self._dial.resolve(server.address)
        with self.changed:
            endpoint = self.server_list.place(server, endpoints)
        if endpoint is None:
            raise Unavailable(f"{server.address}: its name no longer resolves to this machine")
        connection = self._dial.connect(endpoint, timeout_s)
        try:
            graph = self._identity(connection.describe(timeout_s))
            with self.changed:
                self._graph = self._graph or graph
            if graph != self._graph:
                raise WrongGraph(
                    f"server {server}: has graph {graph}, the others have {self._graph}; "
                    "start it with the same folder, or drop it from the addresses"
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def failed(self, server: Server, connection: Connection | None, error: ServerError) -> None:
        """Record a failed request. If the server is lost, it is probed until it answers."""
        with self.changed:
            was = server.state
            self.server_list.failed(server, connection, error, self.clock.now())
            state = server.state
            self.changed.notify_all()
        if state is was or state not in (ServerState.LOST, ServerState.REFUSED):
            return
        # A server that is shutting down still finishes its requests; other failures end all streams.
        if connection is not None and not isinstance(error, GoingAway):
            connection.close()
        if state is ServerState.LOST:
            self._background(partial(_revive, ref(self), server))

    def probe_later(self, server: Server) -> bool:
        """Wait until the next probe is due and try it; return False if probing is over."""
        with self.changed:
            while (pause := server.not_before - self.clock.now()) > 0 and self._probes(server):
                self.clock.wait(self.changed, pause)
            if not self._probes(server):
                return False
        self.probe(server)
        return True

    def _probes(self, server: Server) -> bool:
        return not self.closed and server.state is ServerState.LOST and server in self.server_list.servers

    def probe(self, server: Server) -> None:
        """Probe a lost server once."""
        try:
            self._use(server, self._opened(server, PROBE_S))
        except ServerError as error:
            with self.changed:
                if error.retry in _REFUSED:
                    server.refuse(error)
                else:
                    server.lose(error, self.clock.now())
                self.changed.notify_all()


def _revive(connections: ref[Connections], server: Server) -> None:
    """Probe a lost server until it answers or is left out, or until no client uses the connections."""
    while (used := connections()) is not None and used.probe_later(server):
        del used


Received = TypeVar("Received")
_STOP_POLL_S = 0.2  # interval at which a waiting request checks its stop event


@dataclass
class _Waiting:
    """A request until it is answered."""

    context: CallContext
    limits: Limits
    begun: float
    alive: float  # last time at which a server was known to work on it
    busy: float = float("-inf")  # last busy answer since a part was lost
    retries: int = 0
    avoided: set[Server] = field(default_factory=set)  # failed in this round
    machines: dict[Server, MachineFailed] = field(default_factory=dict)
    first_piece: float | None = None
    wire_bytes: int = 0

    @property
    def end(self) -> float:
        """The time at which the request fails unless a server answers."""
        return max(self.alive, self.busy) + self.limits.deadline_s

    def check_stop(self) -> None:
        """Raise Cancelled if the request was cancelled."""
        if self.context.stop is not None and self.context.stop.is_set():
            raise Cancelled(f"{subject(self.context)}: cancelled")

    def failed(self, server: Server, error: ServerError, began: float, now: float) -> None:
        """Count a failed attempt. One that lasted longer than the silence limit has had heartbeats."""
        self.retries += 1
        self.avoided.add(server)
        if isinstance(error, Busy):
            self.busy = now
        elif isinstance(error, PartLost):
            self.busy = float("-inf")
        # A server that waits for an owner of another part sends heartbeats, but does not make progress.
        if error.retry is not Retry.LATER and now - began > 1.5 * self.limits.attempt_s:
            self.alive = max(self.alive, now - self.limits.attempt_s)


class Pool:
    """Several servers of the same graph as one (an Exchange). Threads may share it.

    A request goes to the server with the fewest requests in flight. If the error is retryable, the request is
    sent to another server. A server that was not reached, or was silent for `attempt_s`, gets no requests
    until it has answered a probe, and its name is resolved again. A server that has another graph or version
    is not used again; this is an error at the first request to an address as given, or if no server is left.
    PeerLost after `deadline_s` without a heartbeat or a busy answer.
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
        self._clock = clock or Clock()
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
        """Return the description of the graph from any server that answers."""
        return self._answer(
            CallContext("graph"), lambda connection, _: connection.describe(self._limits.attempt_s)
        ).value

    def ask(
        self, context: CallContext, request: bytes, receive: Callable[[Iterator[Buffer]], Received]
    ) -> Answer[Received]:
        """Send the request to a server; return the answer that `receive` makes from header and pieces."""

        def call(connection: Connection, waiting: _Waiting) -> Received:
            left = self._left(waiting)
            stream = connection.batch(
                request, min(waiting.limits.attempt_s, left), float("inf"), context.stop
            )
            with closing(stream):  # type: ignore[type-var]
                return receive(_counted(stream, waiting, self._clock))

        return self._answer(context, call)

    def close(self) -> None:
        """Close all connections; requests in progress end with an error."""
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
                if error.retry is Retry.NEVER or (error.retry is Retry.OTHERS and server.is_untried):
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
                server.is_untried = False
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
        return max(0.05, waiting.end - self._clock.now())

    def _take(self, waiting: _Waiting) -> Server:
        """Wait for an available server, and count the request."""
        with self._connections.changed:
            while True:
                waiting.check_stop()
                if self._connections.closed:
                    raise Cancelled(f"{subject(waiting.context)}: the connection to the servers was closed")
                now = self._clock.now()
                _check_refused(waiting.context, self._connections.server_list)
                if now >= waiting.end:
                    raise self._lost(waiting)
                server = self._connections.server_list.choose(now, waiting.avoided)
                if server is not None:
                    if server in waiting.avoided:
                        waiting.avoided.clear()  # all servers have failed once: start another round
                    self._connections.server_list.take(server)
                    return server
                until = min(waiting.end, self._connections.server_list.next_change())
                pause = until - now if waiting.context.stop is None else min(_STOP_POLL_S, until - now)
                self._clock.wait(self._connections.changed, pause)

    def _lost(self, waiting: _Waiting) -> PeerLost:
        return PeerLost(
            f"{subject(waiting.context)}: no server has answered for {waiting.limits.deadline_s:g} s "
            f"({self._connections.server_list.reasons()}); start a server again, and continue a run "
            "with --resume"
        )


def subject(context: CallContext) -> str:
    """Return the subject of a request for messages."""
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


def _check_refused(context: CallContext, server_list: ServerList) -> None:
    """Raise the first server's error, with the reasons of all, if all servers are refused."""
    errors = [server.error for server in server_list.servers if server.state is ServerState.REFUSED]
    if errors and len(errors) == len(server_list.servers):
        assert errors[0] is not None
        sentence = f"{subject(context)}: no server of this graph is left ({server_list.reasons()})"
        raise type(errors[0])(sentence)


def _check_machines(server: Server, error: ServerError, waiting: _Waiting, server_list: ServerList) -> None:
    """Raise MachineFailed once all servers have failed with it: waiting would not help."""
    if isinstance(error, MachineFailed):
        waiting.machines[server] = error
        if waiting.machines.keys() >= set(server_list.usable()):
            raise error


def check_server(endpoint: Endpoint, access: Access, timeout_s: float) -> None:
    """Raise a ServerError if the server is not reached, or not trusted. Sends no token."""
    try:
        # A server that is shutting down may close one connection, but does not accept another.
        if not any(_stays(endpoint, access, timeout_s) for _ in range(2)):
            raise Unauthenticated(
                f"{endpoint}: it closes the connection after TLS; it was started with --client-ca, so give "
                "client_cert and client_key"
            )
    except ServerError:  # some are OSErrors too
        raise
    except TimeoutError:
        raise TimedOut(f"{endpoint}: no answer within {timeout_s:.1f} s") from None
    except OSError as error:
        raise Unavailable(f"{endpoint}: {error.strerror or error}") from None


def _stays(endpoint: Endpoint, access: Access, timeout_s: float) -> bool:
    """Return False if the server closes the connection after the handshake."""
    with socket.create_connection((endpoint.number, endpoint.address.port), timeout_s) as plain:
        return not access.encrypts(endpoint) or _greets(plain, endpoint, access)


def _greets(plain: socket.socket, endpoint: Endpoint, access: Access) -> bool:
    try:
        with context_of(access).wrap_socket(plain, server_hostname=endpoint.address.host) as secure:
            # In TLS 1.3, a server looks at this side's certificate only after the handshake.
            return bool(secure.recv(1))
    except ssl.SSLCertVerificationError as error:
        raise Unauthenticated(
            f"{endpoint}: its certificate is not trusted ({error.verify_message}); give the CA that signed "
            "it as ca, and connect with a name in the certificate"
        ) from None
    except ssl.SSLError as error:
        raise Unauthenticated(f"{endpoint}: {_tls_reason(error)}") from None


def _tls_reason(error: ssl.SSLError) -> str:
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "wrong version" in reason or "record layer" in reason:
        return "it does not use TLS, so no token is sent; start it with --tls-cert and --tls-key"
    if "alert" in reason or "certificate required" in reason:
        return f"it refuses this client's certificate ({reason}); give client_cert and client_key"
    return f"TLS failed ({reason}); compare its certificate with ca"


def context_of(access: Access) -> ssl.SSLContext:
    """Return the TLS settings of a client: verified, version 1.2 or newer, HTTP/2."""
    context = ssl.create_default_context(cafile=access.ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    if access.client_cert is not None:
        context.load_cert_chain(access.client_cert, access.client_key)
    return context


def speaks_tls(endpoint: Endpoint, timeout_s: float) -> bool:
    """Return True if the server uses TLS. For an error message only: nothing is verified or sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((endpoint.number, endpoint.address.port), timeout_s) as plain,
            context.wrap_socket(plain),
        ):
            return True
    except OSError:
        return False
