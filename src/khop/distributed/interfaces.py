"""The one address of this machine that a run listens on: the user's choice, or the one that faces rank 0.

Never all addresses: neither gloo and NCCL nor the store asks who is there, so who reaches them takes part.
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

from khop.distributed.launchers import RankInfo

_LIST_OF_INTERFACES = 0x8912  # SIOCGIFCONF
_ENTRY, _MOST_ENTRIES = 40, 1024  # struct ifreq: 16 bytes of name, then a socket address
_LINK_LOCAL = "20"  # scope of an address in if_inet6 that needs its interface's name beside it
_ELSEWHERE = "192.0.2.1"  # a documentation address: on no machine, so reached by the default route


@dataclass(frozen=True)
class Interface:
    """A network interface by the address that others connect to."""

    name: str
    address: str

    @property
    def is_loopback(self) -> bool:
        """Whether this machine alone reaches it."""
        return ipaddress.ip_address(self.address).is_loopback

    @property
    def is_public(self) -> bool:
        """Whether the whole Internet may reach it."""
        return ipaddress.ip_address(self.address).is_global


LOOPBACK = Interface("lo", "127.0.0.1")


@dataclass(frozen=True)
class Listening:
    """What the user says about where ranks are reached."""

    interface: str | None = None  # a name, an address, or a network; None: the one that faces rank 0
    allow_public: bool = False


def listening_interface(listening: Listening, rank_info: RankInfo) -> Interface:
    """The interface that this rank listens on; ValueError where there is none such, or it is a public one."""
    found = _found(listening.interface, rank_info, interfaces())
    if found.is_public and not listening.allow_public:
        raise ValueError(
            f"rank {rank_info.rank} would listen on {found.address} ({found.name}), a public address, where "
            "anyone may take part: name a private network with --interface, as 10.0.0.0/8, or, behind a "
            "firewall, say --allow-public"
        )
    return found


def interfaces() -> list[Interface]:
    """The addresses of this machine, IPv4 first; of an interface the first is the one that gloo takes."""
    return [*_of_ipv4(), *_of_ipv6()]


def chosen(interface: str, among: Sequence[Interface]) -> Interface:
    """The first interface of that name, or with an address that is it or lies in that network."""
    first: dict[str, Interface] = {}  # address of each name: gloo takes no other
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
    # A name of this machine is often 127.0.1.1 here and its real address elsewhere: then as all else leaves.
    facing = [_own_address_towards(host) for host in (rank_info.host, _ELSEWHERE)]
    own = {each.address: each for each in among if not each.is_loopback}
    return next((own[address] for address in facing if address in own), LOOPBACK)


def _lies_in(interface: Interface, network: str) -> bool:
    try:
        return ipaddress.ip_address(interface.address) in ipaddress.ip_network(network, strict=False)
    except ValueError:  # a name
        return False


def _own_address_towards(host: str) -> str:
    """The address of this machine that packets to the host leave from; "" where there is no way to it."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # of datagrams: nothing is sent
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
