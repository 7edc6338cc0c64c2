"""A look at servers before gRPC connects. test_flight_client.py has the cases of real servers."""

from __future__ import annotations

import socket
import threading

import pytest

from khop.servers.access import Access
from khop.servers.addresses import Address, Endpoint
from khop.servers.connection_check import check_server, speaks_tls
from khop.servers.errors import TimedOut, Unavailable
from support.certificates import Authority


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
