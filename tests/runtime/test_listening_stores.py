"""A store listens where it is told to, and on nothing else."""

from __future__ import annotations

import socket

import pytest

from khop.errors import PeerLost
from khop.runtime.listening_stores import hosted_store, reached_store, wait_for


def connects(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=5).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(("own", "other"), [("127.0.0.1", "127.0.0.2"), ("::1", "127.0.0.1")])
def test_a_store_is_reached_by_its_address_alone(own: str, other: str) -> None:
    store = hosted_store(own)
    store.set("key", "value")
    assert reached_store(1, own, store.port, 10.0).get("key") == b"value"
    assert connects(own, store.port)
    assert not connects(other, store.port)


def test_a_port_that_is_taken_and_an_address_that_is_not_here_are_named() -> None:
    store = hosted_store("127.0.0.1")
    with pytest.raises(OSError, match=rf"port {store.port} of this machine is taken, by another run perhaps"):
        hosted_store("127.0.0.1", store.port)
    with pytest.raises(OSError, match=r"cannot listen on 203.0.113.9, port 0: Cannot assign"):
        hosted_store("203.0.113.9")


def test_a_store_without_a_host_is_an_error_within_the_deadline() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(PeerLost, match=rf"rank 3 found nobody at 127.0.0.1:{port} within 0.5 s"):
        reached_store(3, "127.0.0.1", port, 0.5)


def test_a_key_that_does_not_come_is_an_error_of_its_reader() -> None:
    store = hosted_store("127.0.0.1")
    store.set("b", "")
    assert wait_for(store, {0: "a", 1: "b", 2: "c"}, 0.1) == [0, 2]
    assert wait_for(store, {1: "b"}, 0.1) == []
