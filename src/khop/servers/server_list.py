"""Servers as a client knows them: who may be asked now, who is lost, and when a lost one is probed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from khop.servers.addresses import Address, Endpoint
from khop.servers.errors import MachineFailed, Retry, ServerError
from khop.servers.transport import Connection

FIRST_PROBE_S = 0.1
LAST_PROBE_S = 0.5  # probes become rarer up to this
FAILED_S = 1.0  # pause after a failure of a server's machine
FIRST_BUSY_S = 0.02
LAST_BUSY_S = 0.5


class State(StrEnum):
    """Use of a server."""

    NEW = "new"  # not connected yet
    READY = "ready"
    LOST = "lost"  # only probed
    REFUSED = "refused"  # another graph, or it does not know the token: not asked again


@dataclass(eq=False)
class Server:
    """One machine that may answer, or an address that is not resolved yet."""

    address: Address
    endpoint: Endpoint | None = None
    connection: Connection | None = None
    state: State = State.NEW
    in_flight: int = 0
    asked: int = 0
    failures: int = 0  # since the last answer
    busy: int = 0  # since the last answer
    not_before: float = 0.0  # of the next request, or of the next probe
    reason: str = ""  # of the last failure
    error: ServerError | None = None  # why it was refused

    def __str__(self) -> str:
        """Return the address."""
        return str(self.endpoint or self.address)

    def answered(self) -> None:
        """Forget earlier failures."""
        self.failures = self.busy = 0
        self.not_before = 0.0

    def lose(self, error: ServerError, now: float) -> None:
        """Ask the server no more until a probe is answered."""
        self.state = State.LOST
        self.connection = None
        self.not_before = now + min(LAST_PROBE_S, _longer(FIRST_PROBE_S, self.failures))
        self.failures += 1
        self.reason = str(error)

    def refuse(self, error: ServerError) -> None:
        """Never ask the server again: it answers, but it is not one of these servers."""
        self.state, self.connection = State.REFUSED, None
        self.error, self.reason = error, str(error)

    def found(self, connection: Connection) -> None:
        """Ask the server from now on."""
        self.state, self.connection = State.READY, connection
        self.answered()


@dataclass
class ServerList:
    """The servers of a client. Not thread-safe: its owner holds a lock."""

    servers: list[Server]
    counts: dict[str, int] = field(default_factory=lambda: {"attempts": 0, "retries": 0, "busy": 0})

    @classmethod
    def of(cls, addresses: Iterable[Address]) -> ServerList:
        """Return the servers of addresses that are not connected yet."""
        return cls([Server(address) for address in addresses])

    def usable(self) -> list[Server]:
        """Return the servers that may be asked, now or after a pause."""
        return [server for server in self.servers if server.state in (State.NEW, State.READY)]

    def choose(self, now: float, avoided: Iterable[Server]) -> Server | None:
        """Return the server to ask now: with the fewest requests in flight, then with the fewest so far."""
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
        """Record a failed request. A failure of an earlier connection says nothing about the present one."""
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
        elif server.connection is connection:
            server.lose(error, now)

    def place(self, server: Server, endpoints: Sequence[Endpoint]) -> Endpoint | None:
        """Give the server one of the machines that its name has now, and add servers for further ones.

        None if each machine of the name already has a server: this one is removed.
        """
        others = {each.endpoint for each in self.servers if each is not server}
        free = [endpoint for endpoint in endpoints if endpoint not in others]
        if server.endpoint not in free:
            server.endpoint = free[0] if free else None
        if server.endpoint is None:
            self.servers = [each for each in self.servers if each is not server]
            return None
        rest = [endpoint for endpoint in free if endpoint != server.endpoint]
        self.servers += [Server(server.address, endpoint) for endpoint in rest]
        return server.endpoint

    def reasons(self) -> str:
        """Return each server with the reason why it did not answer."""
        return "; ".join(map(_reason, self.servers))


def _reason(server: Server) -> str:
    reason = server.reason or "not asked"
    return reason if reason.startswith(str(server.address)) else f"{server}: {reason}"


def _longer(first_s: float, times: int) -> float:
    """Return a pause that doubles with each failure; beyond 2**32 its bound decides."""
    return first_s * 2.0 ** min(times, 32)
