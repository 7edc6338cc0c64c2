"""Servers as a client knows them."""

from __future__ import annotations

from khop.servers.addresses import Address, Endpoint
from khop.servers.errors import Busy, Unavailable
from khop.servers.server_list import LAST_BUSY_S, LAST_PROBE_S, ServerList, State

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
    assert (server.state, server.not_before) == (State.LOST, LAST_PROBE_S)
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
