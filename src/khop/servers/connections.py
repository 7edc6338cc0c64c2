"""Connections to servers: made when they are first used, and again once a lost server answers a probe."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol
from weakref import ref

from khop.servers.addresses import Address, Endpoint
from khop.servers.errors import Cancelled, GoingAway, Retry, ServerError, Unavailable, WrongGraph
from khop.servers.server_list import Server, ServerList, State
from khop.servers.transport import Connection

PROBE_S = 2.0  # longest wait for the answer to a probe


class Clock(Protocol):
    """Time, as an argument: tests have one of their own."""

    def now(self) -> float:
        """Return the seconds since some moment."""
        ...

    def wait(self, changed: threading.Condition, seconds: float) -> None:
        """Wait until `changed`, held by the caller, is notified, for these seconds at most."""
        ...


class MachineClock:
    """The clock of this machine."""

    def now(self) -> float:
        """Return `time.monotonic`."""
        return time.monotonic()

    def wait(self, changed: threading.Condition, seconds: float) -> None:
        """Wait for a notification."""
        changed.wait(seconds)


class Dial(Protocol):
    """Ways to reach servers. Errors are ServerErrors; one with Retry.NEVER ends the request that dials."""

    def resolve(self, address: Address) -> Sequence[Endpoint]:
        """Return the machines behind an address, now."""
        ...

    def connect(self, endpoint: Endpoint, timeout_s: float) -> Connection:
        """Return a connection to a machine."""
        ...


def start_thread(work: Callable[[], None]) -> None:
    """Do some work in the background; the end of the process does not wait for it."""
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
        """Close all connections; requests under way end with an error."""
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
            if error.retry is Retry.NEVER:
                with self.changed:
                    server.refuse(error)
            raise
        return self._use(server, connection)

    def _use(self, server: Server, connection: Connection) -> Connection:
        """Share the connection, or take the one that another thread has made first."""
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
            raise Unavailable(f"{server.address}: its name no longer leads to this machine")
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
        """Record a failed request. A server that is lost by it is probed until it answers."""
        with self.changed:
            was = server.state
            self.server_list.failed(server, connection, error, self.clock.now())
            lost = server.state is State.LOST and was is not State.LOST
            self.changed.notify_all()
        if lost:
            # What another server has begun, as it ends, is still on its way; other failures end all streams.
            if connection is not None and not isinstance(error, GoingAway):
                connection.close()
            self._background(partial(_revive, ref(self), server))

    def probe_later(self, server: Server) -> bool:
        """Wait for the time of the next probe and try it; return False if no further one is needed."""
        with self.changed:
            while (pause := server.not_before - self.clock.now()) > 0 and self._probes(server):
                self.clock.wait(self.changed, pause)
            if not self._probes(server):
                return False
        self.probe(server)
        return True

    def _probes(self, server: Server) -> bool:
        return not self.closed and server.state is State.LOST and server in self.server_list.servers

    def probe(self, server: Server) -> None:
        """Try once whether a lost server is back."""
        try:
            self._use(server, self._opened(server, PROBE_S))
        except ServerError as error:
            with self.changed:
                if error.retry is Retry.NEVER:
                    server.refuse(error)
                else:
                    server.lose(error, self.clock.now())
                self.changed.notify_all()


def _revive(connections: ref[Connections], server: Server) -> None:
    """Probe a lost server until it answers or is left out, or until no client uses the connections."""
    while (used := connections()) is not None and used.probe_later(server):
        del used
