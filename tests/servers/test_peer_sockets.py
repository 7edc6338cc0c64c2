"""A connection is ended by the address of its other side."""

from __future__ import annotations

import socket

import pytest

from khop.servers.peer_sockets import shut_down


@pytest.mark.parametrize(("host", "form"), [("127.0.0.1", "ipv4:127.0.0.1:{}"), ("::1", "ipv6:%5B::1%5D:{}")])
def test_the_connection_to_a_peer_ends_and_others_stay(host: str, form: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection((host, port)) as one, socket.create_connection((host, port)) as other:
            (of_one, _), (of_other, _) = listening.accept(), listening.accept()
            with of_one, of_other:
                shut_down(form.format(one.getsockname()[1]))
                one.settimeout(10)
                assert one.recv(1) == b""
                of_other.sendall(b"still")
                assert other.recv(5) == b"still"


def test_a_peer_that_is_gone_is_no_error() -> None:
    shut_down("ipv4:127.0.0.1:1")
