"""The address of a server. test_flight_client.py has its answers."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

pytest.importorskip("pyarrow.flight", reason="pip install pyarrow")

from khop.servers.access import Access, Address, ServerSecurity, write_token
from khop.servers.errors import NotAllowed
from khop.servers.flight_client import flight_dial
from khop.servers.flight_server import served
from khop.servers.request_handler import QueueLimits, RequestHandler
from support.byte_service import ByteService


def _handler() -> RequestHandler:
    return RequestHandler(ByteService(), QueueLimits())


def test_a_server_listens_on_one_address() -> None:
    server = served(_handler(), Address("127.0.0.1", 0), ServerSecurity())
    try:
        with socket.create_connection(("127.0.0.1", server.port), 5):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", server.port), 5)
        with pytest.raises(OSError, match="cannot listen"):
            served(_handler(), Address("127.0.0.1", server.port), ServerSecurity())
    finally:
        server.shutdown()


def test_a_server_that_other_machines_reach_needs_certificate_and_token() -> None:
    with pytest.raises(ValueError, match="--token-file and --tls-cert"):
        served(_handler(), Address("0.0.0.0", 0), ServerSecurity())


def test_a_token_for_other_graphs_sees_neither_graph_nor_counters(tmp_path: Path) -> None:
    path = tmp_path / "token"
    write_token(path, ["other"])
    server = served(_handler(), Address("127.0.0.1", 0), ServerSecurity((path,)))
    dial = flight_dial(Access(path))
    connection = dial.connect(dial.resolve(Address("127.0.0.1", server.port))[0], 5)
    try:
        for ask in (connection.describe, connection.status):
            with pytest.raises(NotAllowed, match="graph 'bytes': token 'token' may read other"):
                ask(5)
    finally:
        connection.close()
        server.shutdown()
