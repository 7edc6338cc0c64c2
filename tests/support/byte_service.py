"""A service of bytes for tests of the network: batches are a pattern, faults are requested."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from khop.servers.access import Buffer, Role
from khop.servers.errors import Cancelled, InvalidRequest, TooLarge
from khop.servers.request_handler import Incoming

PIECE = 1 << 20


def request(size: int = 0, *, takes: float = 0.0, **fault: str) -> bytes:
    """Return a request for `size` bytes that takes some seconds to make."""
    return json.dumps({"size": size, "takes": takes, **fault}).encode()


def arrived(message: bytes) -> Incoming:
    """Return a request that is here as a whole."""
    return Incoming(len(message), lambda: message)


def expected(size: int) -> bytes:
    """Return the bytes of the answer, behind its header."""
    return np.resize(np.arange(251, dtype=np.uint8), size).tobytes()


class ByteService:
    """Answers bytes. It reads requests as JSON, so a pickle is refused."""

    def __init__(self, name: str = "bytes", fingerprint: str = "f1") -> None:
        self.name, self.fingerprint = name, fingerprint
        self.at_once = self.most_at_once = self.made = self.cancelled = 0
        self.order: list[str] = []  # names of the requests, as their answers were made
        self.free = threading.Event()  # no answer is made until it is set
        self.free.set()
        self._lock = threading.Lock()

    def description(self) -> bytes:
        return json.dumps({"fingerprint": self.fingerprint, "name": self.name}).encode()

    def counters(self) -> Mapping[str, int]:
        return {"made": self.made, "cancelled": self.cancelled}

    def accept(self, given: Buffer) -> ByteJob:
        try:
            wanted = json.loads(bytes(given))
        except ValueError:
            raise InvalidRequest("request: is not JSON") from None
        if wanted["size"] > 1 << 28:
            raise TooLarge(f"{wanted['size']} bytes: the most are {1 << 28}")
        return ByteJob(self, wanted)

    def enter(self, change: int) -> None:
        with self._lock:
            self.at_once += change
            self.most_at_once = max(self.most_at_once, self.at_once)


class ByteJob:
    """One request."""

    def __init__(self, service: ByteService, wanted: dict[str, object]) -> None:
        self._service, self._wanted = service, wanted
        self.role = Role(str(wanted.get("role", Role.CLIENT.value)))

    def run(self, cancelled: Callable[[], bool]) -> Iterator[memoryview]:
        self._service.enter(1)
        try:
            end = time.monotonic() + float(self._wanted["takes"])  # type: ignore[arg-type]
            while time.monotonic() < end or not self._service.free.is_set():
                if cancelled():
                    self._service.cancelled += 1
                    raise Cancelled("no longer wanted")
                time.sleep(0.01)
            if "bug" in self._wanted:
                raise KeyError(self._wanted["bug"])
            if "disk" in self._wanted:
                raise OSError(self._wanted["disk"])
        finally:
            self._service.enter(-1)
        self._service.made += 1
        self._service.order.append(str(self._wanted.get("name")))
        return iter(_pieces(int(self._wanted["size"])))  # type: ignore[call-overload]


def _pieces(size: int) -> list[memoryview]:
    body = memoryview(expected(size))
    return [memoryview(b"header"), *(body[i : i + PIECE] for i in range(0, size, PIECE))]


class Trap:
    """A pickle that would leave a trace."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return Path.touch, (self.path,)


class SentBytes:
    """A stream that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def heartbeat(self) -> None: ...

    def send(self, piece: Buffer) -> None:
        self.sent.append(bytes(piece))
