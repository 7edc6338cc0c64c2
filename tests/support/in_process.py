"""Servers in this process: requests and answers are bytes, and there is no network between them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import khop
from khop.api.serve import ServedGraph, graph_on
from khop.servers.access import Answer, Buffer, CallContext
from khop.servers.connections import subject
from khop.servers.errors import Retry, ServerError
from khop.servers.registry import BUILTIN, Registry
from khop.servers.service import Service

Received = TypeVar("Received")


@dataclass(eq=False)
class InProcess:
    """An exchange with several services, asked in turn."""

    services: Sequence[Service]
    asked: list[tuple[str, int]] = field(default_factory=list)  # stage, size of the request
    subjects: list[str] = field(default_factory=list)  # as errors name them
    _turn: Iterator[int] = field(default_factory=itertools.count)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(f"server-{number}" for number in range(len(self.services)))

    def describe(self) -> bytes:
        return self.services[0].description()

    def ask(
        self, context: CallContext, request: bytes, receive: Callable[[Iterator[Buffer]], Received]
    ) -> Answer[Received]:
        with self._lock:
            self.asked.append((context.stage, len(request)))
            self.subjects.append(subject(context))
            turn = next(self._turn) % len(self.services)
        for retries in range(len(self.services)):
            place = (turn + retries) % len(self.services)
            sizes: list[int] = []
            try:
                pieces = self.services[place].accept(bytes(request)).run()
                value = receive(_noted(pieces, sizes))
            except ServerError as error:
                if error.retry is Retry.NEVER or retries == len(self.services) - 1:
                    raise
                continue
            return Answer(value, self.addresses[place], place, retries, sum(sizes), 0.0)
        raise AssertionError("there is no server")

    def close(self) -> None:
        pass


def _noted(pieces: Iterator[Buffer], sizes: list[int]) -> Iterator[Buffer]:
    for piece in pieces:
        sizes.append(len(piece))
        yield bytes(piece)  # the memory of a message is not that of the sender


def connected(graph: khop.Graph, servers: int = 1, registry: Registry = BUILTIN) -> khop.Graph:
    """Return the graph as a client of servers in this process has it."""
    return graph_on(exchange_with(graph, servers, registry))


def exchange_with(graph: khop.Graph, servers: int = 1, registry: Registry = BUILTIN) -> InProcess:
    """Return an exchange with new servers of a graph."""
    return InProcess([Service(ServedGraph.of(graph), registry) for _ in range(servers)])
