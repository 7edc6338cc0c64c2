"""Addresses of servers: their text, the endpoints that a name resolves to, and the loopback."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from khop.servers.errors import Unavailable

_FORM = "write HOST:PORT, HOST:FIRST-LAST for consecutive ports, or [ADDRESS]:PORT for IPv6"
_LAST_PORT = 65_535


@dataclass(frozen=True)
class Address:
    """A host, by name or by number, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return the form HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Endpoint:
    """One machine behind an address: its number, and the name that its certificate has to show."""

    address: Address  # as given; its host is the name in the certificate
    number: str  # IPv4 or IPv6

    def __str__(self) -> str:
        """Return the address, with the number behind a name."""
        if self.number == self.address.host:
            return str(self.address)
        return f"{self.address} ({self.number})"

    @property
    def target(self) -> Address:
        """Return the address by number."""
        return Address(self.number, self.address.port)


def parsed_address(text: str) -> Address:
    """Return the one address that `text` names; ValueError if it names none or several."""
    found = parsed_addresses([text])
    if len(found) != 1:
        raise ValueError(f"address {text!r}: names {len(found)} ports, needs one; {_FORM}")
    return found[0]


def parsed_addresses(texts: Sequence[str]) -> tuple[Address, ...]:
    """Return the addresses that the texts name, without repetition, in their order."""
    found = [address for text in texts for address in _ports(text)]
    if not found:
        raise ValueError(f"no address of a server: give at least one; {_FORM}")
    return tuple(dict.fromkeys(found))


def _ports(text: str) -> list[Address]:
    host, colon, ports = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    first, dash, last = ports.partition("-")
    numbers = [first, last if dash else first]
    if not (host and colon and all(each.isdecimal() for each in numbers)):
        raise ValueError(f"address {text!r}: is no address of a server; {_FORM}")
    low, high = map(int, numbers)
    if not low <= high <= _LAST_PORT:
        raise ValueError(
            f"address {text!r}: ports run from 0 to {_LAST_PORT}, the first before the last; {_FORM}"
        )
    return [Address(host, port) for port in range(low, high + 1)]


def resolved(address: Address) -> tuple[Endpoint, ...]:
    """Return the machines behind an address; Unavailable if its name has none now."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: a part of the name has over 63 characters
        raise Unavailable(f"{address.host}: no address is known for this name ({error})") from None
    numbers = dict.fromkeys(str(entry[4][0]) for entry in found)
    return tuple(Endpoint(address, number) for number in numbers)


def is_loopback(number: str) -> bool:
    """Return True if no other machine reaches this IP address."""
    return ipaddress.ip_address(number.partition("%")[0]).is_loopback
