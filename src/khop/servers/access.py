"""Access to servers: addresses, tokens, TLS certificates, and the interface of a connection.

This module decides where a token may be sent. It is independent of the transport.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import socket
import stat
import threading
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

from khop.arguments import LONGEST_S
from khop.servers.errors import NotAllowed, Unauthenticated, Unavailable

_FORM = "write HOST:PORT, HOST:FIRST-LAST for consecutive ports, or [ADDRESS]:PORT for IPv6"
_LAST_PORT = 65_535


@dataclass(frozen=True)
class Address:
    """A host, by name or by IP address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return the form HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Endpoint:
    """One machine behind an address: its IP address, and the name that its certificate must have."""

    address: Address  # as given; its host is the name in the certificate
    number: str  # IPv4 or IPv6

    def __str__(self) -> str:
        """Return the address, followed by the IP address if the host is a name."""
        if self.number == self.address.host:
            return str(self.address)
        return f"{self.address} ({self.number})"

    @property
    def target(self) -> Address:
        """Return the address with the IP address as its host."""
        return Address(self.number, self.address.port)


def parsed_address(text: str) -> Address:
    """Return the address that `text` names; ValueError unless it names exactly one."""
    found = parsed_addresses([text])
    if len(found) != 1:
        raise ValueError(f"address {text!r}: names {len(found)} ports, needs one; {_FORM}")
    return found[0]


def parsed_addresses(texts: Sequence[str]) -> tuple[Address, ...]:
    """Return the addresses that the texts name, in order and without duplicates."""
    found = [address for text in texts for address in _ports(text)]
    if not found:
        raise ValueError(f"no server address is given: give at least one; {_FORM}")
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
        raise ValueError(f"address {text!r}: is not a server address; {_FORM}")
    low, high = map(int, numbers)
    if not low <= high <= _LAST_PORT:
        raise ValueError(
            f"address {text!r}: ports run from 0 to {_LAST_PORT}, the first before the last; {_FORM}"
        )
    return [Address(host, port) for port in range(low, high + 1)]


def resolved(address: Address) -> tuple[Endpoint, ...]:
    """Return the machines behind an address; Unavailable if its name does not resolve."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: a part of the name has over 63 characters
        raise Unavailable(f"{address.host}: no address is known for this name ({error})") from None
    numbers = dict.fromkeys(str(entry[4][0]) for entry in found)
    return tuple(Endpoint(address, number) for number in numbers)


def is_loopback(number: str) -> bool:
    """Return True if other machines cannot reach this IP address."""
    return ipaddress.ip_address(number.partition("%")[0]).is_loopback


LEAST_TOKEN = 16  # characters
_MOST_FILE = 1 << 16  # bytes of a token file
_EVERY_GRAPH = "*"
_KEYS = {"token", "graphs", "role"}


class Role(StrEnum):
    """Requests that a token allows."""

    CLIENT = "client"  # descriptions, batches, counters
    SERVER = "server"  # also hops and rows of parts, for servers of a partitioned graph


@dataclass(frozen=True)
class Token:
    """The contents of a token file. Its `repr` does not show the secret."""

    name: str  # of the file, for logs
    digest: bytes = field(repr=False)  # SHA-256 of the secret
    graphs: tuple[str, ...] = (_EVERY_GRAPH,)
    role: Role = Role.CLIENT

    def check_graph(self, graph: str) -> None:
        """Raise NotAllowed if the token may not read this graph."""
        if _EVERY_GRAPH not in self.graphs and graph not in self.graphs:
            raise NotAllowed(
                f"graph {graph!r}: token {self.name!r} may read {', '.join(self.graphs) or 'no graph'}; "
                "add the graph to `graphs` in its token file on the server"
            )

    def check_role(self, role: Role) -> None:
        """Raise NotAllowed if the token may not send requests of this role."""
        if role is Role.SERVER and self.role is not Role.SERVER:
            raise NotAllowed(
                f'token {self.name!r}: only tokens with `role = "server"` may ask for hops and rows of parts'
            )


# TLS: for connections to other machines, and for all if `ca` or `client_cert` is given; never.
Encryption = Literal["remote", "off"]


@dataclass(frozen=True)
class Access:
    """How a client identifies itself, and how it verifies servers."""

    token_file: Path | None = None
    ca: Path | None = None  # PEM, the CAs that sign server certificates; None: the system's CAs
    client_cert: Path | None = None  # PEM, for servers that were started with --client-ca
    client_key: Path | None = None
    encryption: Encryption = "remote"

    def __post_init__(self) -> None:
        if (self.client_cert is None) != (self.client_key is None):
            raise ValueError("client_cert and client_key: one needs the other; give both or neither")
        if self.encryption == "off" and (self.ca or self.client_cert):
            raise ValueError(
                "encryption is off (insecure): ca and client_cert have no effect; drop one of them"
            )

    def encrypts(self, endpoint: Endpoint) -> bool:
        """Return True if the connection uses TLS: always to other machines, unless encryption is off."""
        if self.encryption == "off":
            return False
        return bool(self.ca or self.client_cert) or not is_loopback(endpoint.number)


@dataclass(frozen=True)
class Limits:
    """Time limits of a client."""

    deadline_s: float = 60.0  # without a heartbeat or a busy answer from any server
    attempt_s: float = 20.0  # without a heartbeat from one server

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int | float) or not 0 < value <= LONGEST_S:
                raise ValueError(
                    f"{name} {value!r}: must be a number of seconds above 0, at most {LONGEST_S:g}"
                )


def secret_of(path: Path) -> str:
    """Return the secret in a token file; PermissionError if other users may read it."""
    return _read(path)[0]


def token_of(path: Path) -> Token:
    """Return the contents of a token file without its secret."""
    return _read(path)[1]


def write_token(path: Path, graphs: Sequence[str] = (_EVERY_GRAPH,), role: Role = Role.CLIENT) -> None:
    """Write a token file with a new secret, readable only by its owner. Existing files are kept."""
    names = ", ".join(map(_quoted, graphs))
    text = f'token = "{secrets.token_urlsafe(32)}"\ngraphs = [{names}]\nrole = "{role.value}"\n'.encode()
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text)


def _quoted(name: str) -> str:
    """Return text as a TOML string: escaped as in JSON, the delete character as well."""
    return json.dumps(name, ensure_ascii=False).replace("\x7f", r"\u007f")


def _read(path: Path) -> tuple[str, Token]:
    with open(path, "rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            raise PermissionError(
                f"{path}: a token is a secret, and other users may read it (mode {mode:04o}); "
                f"run chmod 600 {path}"
            )
        raw = file.read(_MOST_FILE)
    try:
        values = tomllib.loads(raw.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        # The error's text would show a part of the file.
        raise ValueError(f"{path}: is not a token file; `khop servers token FILE` writes one") from None
    match values:
        case {"token": str(secret)} if (
            len(secret) >= LEAST_TOKEN and secret.isascii() and secret.isprintable()
        ):
            return secret, _token(path, secret, values)
    raise ValueError(
        f'{path}: needs a line token = "..." of {LEAST_TOKEN} ASCII characters or more; '
        "`khop servers token FILE` writes one"
    )


def _token(path: Path, secret: str, values: dict[str, object]) -> Token:
    unknown = sorted(set(values) - _KEYS)
    graphs = values.get("graphs", [_EVERY_GRAPH])
    role = values.get("role", Role.CLIENT.value)
    if unknown:
        raise ValueError(f"{path}: unknown key {unknown[0]!r}; a token file has token, graphs and role")
    if not isinstance(graphs, list) or not all(isinstance(name, str) for name in graphs):
        raise ValueError(f'{path}: graphs must be a list of names, ["*"] for all')
    if role not in set(Role):
        raise ValueError(f"{path}: role {role!r} must be {' or '.join(Role)}")
    return Token(path.name, _digest(secret), tuple(graphs), Role(str(role)))


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


class Tokens:
    """The tokens that a server accepts. Without tokens, everyone is accepted as a client."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        digests = [token.digest for token in tokens]
        if len(set(digests)) != len(digests):
            raise ValueError("token files: two have the same token; give each client a different token")
        self._tokens = tuple(tokens)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self._tokens)

    def holder(self, authorization: str) -> Token:
        """Return the token in an authorization header; Unauthenticated if no file has it.

        The secret is compared with the secrets of all files, as digests, so timing reveals nothing about it.
        """
        if not self._tokens:
            return Token("none", b"")
        scheme, _, secret = authorization.partition(" ")
        given = _digest(secret)
        found = [token for token in self._tokens if hmac.compare_digest(token.digest, given)]
        if scheme != "Bearer" or not found:
            kind = "a wrong token" if secret else "no token"
            raise Unauthenticated(
                f"the request has {kind}: set token_file to a token file that this server was started with"
            )
        return found[0]


@dataclass(frozen=True)
class ServerSecurity:
    """Certificate, key and tokens of a server."""

    token_files: tuple[Path, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    client_ca: Path | None = None  # clients need a certificate signed by this CA
    insecure: bool = False

    def absolute(self) -> ServerSecurity:
        """Return the same files with absolute paths, for a process with another working directory."""
        cert, key, ca = (path and path.absolute() for path in (self.tls_cert, self.tls_key, self.client_ca))
        return ServerSecurity(
            tuple(path.absolute() for path in self.token_files), cert, key, ca, self.insecure
        )

    def check(self, numbers: Sequence[str]) -> None:
        """Raise ValueError if a server with these settings may not listen on these IP addresses."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key: one needs the other; give both or neither")
        if self.client_ca and not self.tls_cert:
            raise ValueError("--client-ca: needs --tls-cert and --tls-key")
        beyond = [number for number in numbers if not is_loopback(number)]
        missing = [
            option
            for option, value in (
                ("--token-file", self.token_files),
                ("--tls-cert and --tls-key", self.tls_cert),
            )
            if not value
        ]
        if beyond and missing and not self.insecure:
            raise ValueError(
                f"{beyond[0]}: other machines reach this address, so it needs {' and '.join(missing)}; "
                "listen on 127.0.0.1, or give --insecure in a network that you trust"
            )


Buffer = bytes | memoryview  # contiguous
BEATS = 4  # heartbeats within an attempt
Received = TypeVar("Received")


@dataclass(frozen=True)
class CallContext:
    """Context of a request: its subject for messages and logs, and the event that cancels it."""

    stage: str  # "batch", "graph", ...
    epoch: int = 0
    step: int = 0
    stop: threading.Event | None = None  # once set, the request is dropped, with Cancelled
    limits: Limits | None = None  # None: those of the exchange
    words: str = ""  # for messages, if epoch and step do not identify the request


@dataclass(frozen=True)
class Answer(Generic[Received]):
    """A decoded answer and its cost."""

    value: Received
    server: str  # address, with the IP address of a host name
    place: int  # index of the server's address among the exchange's, from 0
    retries: int  # failed attempts
    wire_bytes: int  # of the answer
    wait_s: float  # from the first attempt to the first piece of the answer


class Connection(Protocol):
    """A connection to one server. Threads may share it; errors are ServerErrors."""

    @property
    def address(self) -> str:
        """Address of the server."""
        ...

    def describe(self, timeout_s: float) -> bytes:
        """Return the description of the server's graph."""
        ...

    def batch(
        self, request: bytes, attempt_s: float, deadline_s: float, stop: threading.Event | None
    ) -> Iterator[Buffer]:
        """Yield the header of the answer, then its pieces.

        TimedOut after `attempt_s` without a heartbeat, or after `deadline_s` in all. `close()` of the
        iterator, or `stop`, cancels the request on the server.
        """
        ...

    def status(self, timeout_s: float) -> bytes:
        """Return the counters of the server, in JSON."""
        ...

    def close(self) -> None:
        """Close the connection; requests in progress end with an error."""
        ...
