"""Connections that several threads make at once.

A look at servers before gRPC connects. test_flight_client.py has the cases of real servers.

Servers as a client knows them.
"""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from khop.servers.access import Access, Address, Endpoint
from khop.servers.connections import (
    LAST_BUSY_S,
    LAST_PROBE_S,
    Clock,
    Connections,
    ServerList,
    ServerState,
    check_server,
    speaks_tls,
    start_thread,
)
from khop.servers.errors import Busy, TimedOut, Unavailable
from servers.test_pool import World
from support.certificates import Authority


class _Gate(World):
    """A network on which two threads connect at the same time."""

    def connect(self, endpoint: Endpoint, timeout_s: float) -> World.ResponseStream:
        line = super().connect(endpoint, timeout_s)
        self.lines.append(line)
        self.both.wait(10)
        return line


def test_threads_that_connect_at_once_share_one_connection() -> None:
    gate = _Gate()
    gate.lines, gate.both = [], threading.Barrier(2)  # type: ignore[attr-defined]
    connections = Connections([Address("a", 1)], gate, bytes.decode, Clock())
    (server,) = connections.server_list.servers
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: connections.connected(server, 1.0), range(2))
    assert first is second
    assert sorted(line.closed for line in gate.lines) == [False, True]  # type: ignore[attr-defined]
    connections.close()
    assert all(line.closed for line in gate.lines)  # type: ignore[attr-defined]


def test_probes_of_a_lost_server_end_with_the_last_use_of_its_connections() -> None:
    threads: list[threading.Thread] = []

    def started(work: Callable[[], None]) -> None:
        before = set(threading.enumerate())
        start_thread(work)
        threads.extend(set(threading.enumerate()) - before)

    def refuse() -> None:
        raise Unavailable("reset")

    world = World(faults={"a": refuse})
    connections = Connections([Address("a", 1)], world, bytes.decode, Clock(), started)
    (server,) = connections.server_list.servers
    connections.failed(server, None, Unavailable("reset"))
    assert [thread.name for thread in threads] == ["khop-probe"]
    time.sleep(0.3)
    assert threads[0].is_alive()
    del connections
    gc.collect()
    threads[0].join(10)
    assert not threads[0].is_alive()


def _endpoint(port: int) -> Endpoint:
    return Endpoint(Address("localhost", port), "127.0.0.1")


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        endpoint = _endpoint(taken.getsockname()[1])
        with pytest.raises(Unavailable, match="refused"):
            check_server(endpoint, Access(), 1)
        assert not speaks_tls(endpoint, 1)


def test_a_stopped_server_is_a_time_out(tmp_path_factory: pytest.TempPathFactory) -> None:
    authority = Authority.of(tmp_path_factory.mktemp("ca"))
    access = Access(ca=authority.pair.cert)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(TimedOut, match=r"within 0\.2 s"),
    ):
        check_server(_endpoint(silent.getsockname()[1]), access, 0.2)


def test_a_server_without_tls_gets_a_connection_and_nothing_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        got: list[bytes] = []

        def accept() -> None:
            with server.accept()[0] as accepted:
                got.append(accepted.recv(100))

        thread = threading.Thread(target=accept)
        thread.start()
        check_server(_endpoint(server.getsockname()[1]), Access(), 5)
        thread.join()
    assert got == [b""]


A, B = Address("a", 1), Address("b", 1)


def test_the_server_with_the_fewest_requests_in_flight_is_chosen() -> None:
    servers = ServerList.of([A, B])
    first, second = servers.servers
    servers.take(first)
    assert servers.choose(0.0, ()) is second
    assert servers.choose(0.0, (second,)) is first
    first.in_flight = 0
    assert servers.choose(0.0, ()) is second  # it was asked less often


def test_pauses_grow_up_to_a_bound_and_end_with_an_answer() -> None:
    servers = ServerList.of([A])
    (server,) = servers.servers
    for _ in range(20):
        servers.failed(server, None, Busy("full"), 0.0)
    assert server.not_before == LAST_BUSY_S
    assert servers.choose(0.0, ()) is None
    assert servers.next_change() == LAST_BUSY_S
    server.answered()
    assert servers.choose(0.0, ()) is server
    for _ in range(2000):  # twenty minutes of probes
        server.lose(Unavailable("reset"), 0.0)
    assert (server.state, server.not_before) == (ServerState.LOST, LAST_PROBE_S)
    assert servers.usable() == []


def test_a_server_keeps_its_machine_while_its_name_leads_there() -> None:
    servers = ServerList.of([A])
    (server,) = servers.servers
    one, two = Endpoint(A, "10.0.0.1"), Endpoint(A, "10.0.0.2")
    assert servers.place(server, [one, two]) == one
    assert [each.endpoint for each in servers.servers] == [one, two]
    assert servers.place(server, [two, one]) == one
    assert servers.place(server, [two]) is None
    assert [each.endpoint for each in servers.servers] == [two]
