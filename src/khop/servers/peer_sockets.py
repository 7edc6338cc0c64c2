"""Connections of this process by the address of the other side, for servers that hand out no sockets."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

_OPEN_FILES = Path("/dev/fd")  # of this process, on Linux and macOS


def shut_down(peer: str) -> None:
    """Shut down the connections to a peer, such as "ipv4:10.0.0.5:4711" or "ipv6:%5B::1%5D:4711"."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    wanted = (_number(host.strip("[]")), int(port))
    for each in os.listdir(_OPEN_FILES):
        with suppress(OSError):  # not connected, or closed meanwhile
            if stat.S_ISSOCK(os.fstat(int(each)).st_mode):
                with socket.socket(fileno=os.dup(int(each))) as found:
                    if _remote(found) == wanted:
                        found.shutdown(socket.SHUT_RDWR)


def _remote(connection: socket.socket) -> tuple[str, int] | None:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    host, port = connection.getpeername()[:2]
    return _number(host), port


def _number(host: str) -> str:
    """Return one form of an IP address: without its interface, and as IPv4 if it is one within IPv6."""
    number = ipaddress.ip_address(host.partition("%")[0])
    return str(getattr(number, "ipv4_mapped", None) or number)
