"""The one address of this machine that a run listens on: chosen by the user, or the one that faces rank 0.

A run never listens on all addresses. Gloo, NCCL and the store authenticate no peer, so any process that
reaches them can take part.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path

from khop.runtime.launchers import RankInfo

_LIST_OF_INTERFACES = 0x8912  # SIOCGIFCONF
_ENTRY, _MOST_ENTRIES = 40, 1024  # struct ifreq: 16 bytes of name, then a socket address
_LINK_LOCAL = "20"  # scope in if_inet6: an address of this scope is valid only with its interface's name
_ELSEWHERE = "192.0.2.1"  # an address for documentation: no machine has it, so the default route leads there


@dataclass(frozen=True)
class Interface:
    """A network interface, with the address that other machines connect to."""

    name: str
    address: str

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach the address."""
        return ipaddress.ip_address(self.address).is_loopback

    @property
    def is_public(self) -> bool:
        """True if the whole Internet may reach the address."""
        return ipaddress.ip_address(self.address).is_global


LOOPBACK = Interface("lo", "127.0.0.1")


@dataclass(frozen=True)
class Listening:
    """The user's choice of the interface on which ranks listen."""

    interface: str | None = None  # name, address or network; None: the interface that faces rank 0
    allow_public: bool = False


def listening_interface(listening: Listening, rank_info: RankInfo) -> Interface:
    """Return the interface that this rank listens on.

    ValueError if no interface matches, or if the address is public and `allow_public` is not set.
    """
    found = _found(listening.interface, rank_info, interfaces())
    if found.is_public and not listening.allow_public:
        raise ValueError(
            f"rank {rank_info.rank} would listen on {found.address} ({found.name}), a public address "
            "that anyone can connect to: name a private network with --interface, as 10.0.0.0/8, or, behind "
            "a firewall, use --allow-public"
        )
    return found


def interfaces() -> list[Interface]:
    """Return the addresses of this machine, IPv4 first; gloo uses the first address of an interface."""
    return [*_of_ipv4(), *_of_ipv6()]


def chosen(interface: str, among: Sequence[Interface]) -> Interface:
    """Return the first interface with this name, this address, or an address in this network.

    Only the first address of each interface counts. ValueError lists all interfaces if none matches.
    """
    first: dict[str, Interface] = {}  # first address of each name: gloo uses no other
    for each in among:
        first.setdefault(each.name, each)
    matching = [each for each in first.values() if interface == each.name or _lies_in(each, interface)]
    if not matching:
        have = ", ".join(f"{each.name} {each.address}" for each in among)
        raise ValueError(
            f"--interface {interface}: no interface of {socket.gethostname()} has this name or a first "
            f"address in it; there are {have}"
        )
    return matching[0]


def _found(interface: str | None, rank_info: RankInfo, among: Sequence[Interface]) -> Interface:
    if interface:
        return chosen(interface, among)
    is_of_one_machine = rank_info.local_world_size == rank_info.world_size
    if is_of_one_machine or rank_info.host == "localhost" or rank_info.host.startswith("127."):
        return LOOPBACK
    # This machine's own name often resolves to 127.0.1.1 here: then take the interface of the default route.
    facing = [_own_address_towards(host) for host in (rank_info.host, _ELSEWHERE)]
    own = {each.address: each for each in among if not each.is_loopback}
    return next((own[address] for address in facing if address in own), LOOPBACK)


def _lies_in(interface: Interface, network: str) -> bool:
    try:
        return ipaddress.ip_address(interface.address) in ipaddress.ip_network(network, strict=False)
    except ValueError:  # a name
        return False


def _own_address_towards(host: str) -> str:
    """Return this machine's source address of packets to the host; "" if there is no route."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # connecting a datagram socket sends nothing
            own: str = probe.getsockname()[0]
            return own
    except OSError:
        return ""


def _of_ipv4() -> list[Interface]:
    buffer = array("B", bytes(_ENTRY * _MOST_ENTRIES))
    place = struct.pack("iL", len(buffer), buffer.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        used, _ = struct.unpack("iL", ioctl(any_socket, _LIST_OF_INTERFACES, place))
    entries = [buffer[start : start + _ENTRY].tobytes() for start in range(0, used, _ENTRY)]
    return [
        Interface(entry[:16].split(b"\0")[0].decode(), socket.inet_ntoa(entry[20:24])) for entry in entries
    ]


def _of_ipv6() -> list[Interface]:
    listed = Path("/proc/net/if_inet6")
    lines = [line.split() for line in listed.read_text().splitlines()] if listed.exists() else []
    return [
        Interface(name, str(ipaddress.IPv6Address(bytes.fromhex(digits))))
        for digits, _, _, scope, _, name in lines
        if scope != _LINK_LOCAL
    ]
