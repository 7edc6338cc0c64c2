"""Connections that several threads make at once."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from khop.servers.addresses import Address, Endpoint
from khop.servers.connections import Connections, MachineClock, start_thread
from khop.servers.errors import Unavailable
from servers.test_pool import World


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
    connections = Connections([Address("a", 1)], gate, bytes.decode, MachineClock())
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
    connections = Connections([Address("a", 1)], world, bytes.decode, MachineClock(), started)
    (server,) = connections.server_list.servers
    connections.failed(server, None, Unavailable("reset"))
    assert [thread.name for thread in threads] == ["khop-probe"]
    time.sleep(0.3)
    assert threads[0].is_alive()
    del connections
    gc.collect()
    threads[0].join(10)
    assert not threads[0].is_alive()
