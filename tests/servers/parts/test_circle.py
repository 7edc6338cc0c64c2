"""Servers that make batches for each other at the same time never wait in a circle."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

import khop
from khop.api.serve import graph_on
from khop.servers.access import Answer, Buffer, CallContext, Role, Token
from khop.servers.parts.exchange import PartExchange
from khop.servers.request_handler import QueueLimits, RequestHandler
from support.byte_service import SentBytes, arrived
from support.parts_in_process import part_services
from support.same_samples import assert_same

Received = TypeVar("Received")
BETWEEN = Token("between", b"", role=Role.SERVER)


class Handled:
    """An exchange with a server that has a queue (an Exchange)."""

    addresses = ("server",)

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler

    def describe(self) -> bytes:
        return self._handler.describe(BETWEEN)

    def close(self) -> None: ...

    def ask(
        self, context: CallContext, request: bytes, receive: Callable[[Iterator[Buffer]], Received]
    ) -> Answer[Received]:
        stream = SentBytes()
        self._handler.answer(arrived(request), BETWEEN, "client", stream, 0.5)
        return Answer(receive(iter(stream.sent)), "server", 0, 0, 0, 0.0)


def loader_of(graph: khop.Graph) -> khop.Loader:
    return khop.Loader(khop.NeighborSampler(graph, [3, 2]), graph.split("train"), 64, columns=["x"])


def test_batches_on_both_servers_wait_for_each_others_hops_and_end(
    plain_parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each server makes one batch at a time, and both are in the middle of one when they ask each other."""
    services = part_services(plain_parts)
    handlers = [RequestHandler(service, QueueLimits(at_once=1)) for service in services]
    for part, service in enumerate(services):
        exchange: PartExchange = service._part._graph.owners.exchange  # type: ignore[union-attr,attr-defined]
        exchange._owners = {1 - part: Handled(handlers[1 - part])}
    both, ask = threading.Barrier(2), PartExchange.ask
    first = {0, 1}

    def ask_together(self: PartExchange, *given: object) -> object:
        if self.part in first:
            first.discard(self.part)
            both.wait(60)
        return ask(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(PartExchange, "ask", ask_together)
    loaders = [loader_of(graph_on(Handled(handler))) for handler in handlers for _ in range(2)]
    with ThreadPoolExecutor(len(loaders)) as threads:
        found = list(threads.map(lambda loader: loader.batch(0, 1), loaders))
    assert not first
    expected = loader_of(khop.open_graph(plain_parts)).batch(0, 1)
    for batch in found:
        assert_same(batch.sample, expected.sample)
        assert_same(batch.columns, expected.columns, "columns")
