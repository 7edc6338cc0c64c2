"""Findings on the network: interfaces, and the name of this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence

from khop.cli.doctor.finding import Finding, State
from khop.runtime.interfaces import Interface

AREA = "network"


def network(among: Sequence[Interface], host: str) -> Iterator[Finding]:
    """Yield each interface and its use, then the name of this machine."""
    if not any(each.is_loopback for each in among):
        found = "missing: several processes of one machine cannot connect"
        yield Finding(AREA, "loopback", found, State.WRONG, "sudo ip link set lo up")
    for each in among:
        yield Finding(AREA, each.name, f"{each.address}, {_use(each)}")
    if all(each.is_loopback for each in among):
        yield Finding(AREA, "other machines", "no interface: runs use this machine only", State.NOTE)
        return
    try:
        address = socket.getaddrinfo(host, None)[0][4][0]
    except OSError:
        remedy = f'echo "{_first(among)} {host}" | sudo tee -a /etc/hosts'
        yield Finding(
            AREA, "host name", f"{host} has no address: other machines need one", State.WRONG, remedy
        )
        return
    yield Finding(AREA, "host name", f"{host} is {address}")


def _use(interface: Interface) -> str:
    if interface.is_loopback:
        return "for the processes of this machine"
    if interface.is_public:
        return "public: khop listens there only with --allow-public"
    return f"for other machines (--interface {interface.name})"


def _first(among: Sequence[Interface]) -> str:
    return next(each.address for each in among if not each.is_loopback)
