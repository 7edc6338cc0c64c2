"""On which address of a machine a run listens, and which are refused."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from khop.runtime import interfaces as module
from khop.runtime.interfaces import (
    LOOPBACK,
    Interface,
    Listening,
    chosen,
    interfaces,
    listening_interface,
)
from khop.runtime.launchers import RankInfo

SEVERAL = [
    LOOPBACK,
    Interface("eth0", "141.30.1.2"),
    Interface("eth1", "10.1.0.7"),
    Interface("eth1", "10.2.0.7"),
    Interface("eth1", "fd00::7"),
    Interface("ib0", "fd00::8"),
]


def placement(host: str, local_world_size: int = 1) -> RankInfo:
    """Rank 0 of two."""
    return RankInfo(0, 2, 0, local_world_size, host, 29500)


@contextmanager
def machine(monkeypatch: pytest.MonkeyPatch, towards: dict[str, str]) -> Iterator[None]:
    """This machine has several networks, and its routes lead from these addresses."""
    with monkeypatch.context() as patch:
        patch.setattr(module, "interfaces", lambda: SEVERAL)
        patch.setattr(module, "_own_address_towards", lambda host: towards.get(host, towards["*"]))
        yield


@pytest.mark.parametrize(
    ("said", "address"),
    [("eth1", "10.1.0.7"), ("10.1.0.7", "10.1.0.7"), ("10.0.0.0/8", "10.1.0.7"), ("fd00::/8", "fd00::8")],
)
def test_an_interface_is_known_by_its_name_its_address_or_its_network(said: str, address: str) -> None:
    assert chosen(said, SEVERAL).address == address


@pytest.mark.parametrize("said", ["eth9", "10.2.0.7", "172.16.0.0/12", "10.1.0.7/33"])
def test_an_interface_that_is_not_there_is_refused_with_those_that_are(said: str) -> None:
    with pytest.raises(
        ValueError, match=rf"--interface {said}: .* there are lo 127.0.0.1, eth0 141.30.1.2, "
    ):
        chosen(said, SEVERAL)


def test_this_machines_own_interfaces_are_those_that_the_system_lists() -> None:
    lines = subprocess.run(["ip", "-br", "address"], capture_output=True, text=True, check=True).stdout
    listed = {
        (line.split()[0].partition("@")[0], address.partition("/")[0])
        for line in lines.splitlines()
        for address in line.split()[2:]
        if not address.startswith("fe80")
    }
    assert {(each.name, each.address) for each in interfaces()} == listed
    assert interfaces()[0] == LOOPBACK


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_one_machine_is_among_itself(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with machine(monkeypatch, {"*": "141.30.1.2"}):
        assert listening_interface(Listening(), placement(host)) == LOOPBACK
        assert listening_interface(Listening(), placement("node-0", local_world_size=2)) == LOOPBACK


def test_of_several_machines_the_network_is_taken_that_leads_to_rank_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with machine(monkeypatch, {"node-0": "10.1.0.7", "*": "141.30.1.2"}):
        assert listening_interface(Listening(), placement("node-0")).name == "eth1"
    # As on Debian: a machine's own name leads to itself.
    with machine(monkeypatch, {"node-0": "127.0.1.1", "*": "10.1.0.7"}):
        assert listening_interface(Listening(), placement("node-0")).name == "eth1"
    with machine(monkeypatch, {"*": ""}):
        assert listening_interface(Listening(), placement("node-0")) == LOOPBACK


def test_a_public_address_is_refused_unless_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    with machine(monkeypatch, {"*": "141.30.1.2"}):
        for network in (Listening(), Listening("eth0")):
            with pytest.raises(
                ValueError, match=r"rank 0 would listen on 141.30.1.2 \(eth0\), a public address"
            ):
                listening_interface(network, placement("node-0"))
        assert listening_interface(Listening(allow_public=True), placement("node-0")).name == "eth0"
        assert listening_interface(Listening("10.0.0.0/8"), placement("node-0")).name == "eth1"


def test_a_way_to_a_host_begins_at_an_address_of_this_machine() -> None:
    assert module._own_address_towards("127.0.0.1") == "127.0.0.1"
    assert module._own_address_towards("no.such.host.invalid") == ""
    assert socket.getaddrinfo("localhost", 9)
