"""An exchange over the network answers as one in this process does."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn

import pytest

pytest.importorskip("pyarrow.flight", reason="pip install pyarrow")

import khop
from khop.api.serve import ServedGraph, graph_on
from khop.servers.access import Access, Address, Buffer, CallContext, Limits, ServerSecurity
from khop.servers.connections import Pool
from khop.servers.errors import Cancelled, InvalidRequest
from khop.servers.flight_client import connected
from khop.servers.flight_server import served
from khop.servers.messages import ListOf, NodesOfSplit, request
from khop.servers.registry import BUILTIN
from khop.servers.request_handler import QueueLimits, RequestHandler
from khop.servers.service import Cancelling, Job, Service
from support.gate import wait_until
from support.in_process import exchange_with

BATCH = CallContext("batch", 1, 2)


@contextmanager
def over_the_network(graph: khop.Graph, service: Service | None = None) -> Iterator[Pool]:
    handler = RequestHandler(service or Service(ServedGraph.of(graph), BUILTIN), QueueLimits())
    server = served(handler, Address("127.0.0.1", 0), ServerSecurity())
    exchange = connected([f"localhost:{server.port}"], Access(), Limits(deadline_s=60, attempt_s=30))
    try:
        yield exchange
    finally:
        exchange.close()
        server.shutdown()


def read(pieces: Iterator[Buffer]) -> bytes:
    return b"".join(map(bytes, pieces))


def test_exchanges_over_the_network_and_in_this_process_describe_the_same_graph(
    plain_graph: khop.Graph,
) -> None:
    inside = exchange_with(plain_graph)
    with over_the_network(plain_graph) as network:
        assert network.describe() == inside.describe()
        assert len(network.addresses) == len(inside.addresses) == 1


def test_a_request_that_no_server_can_read_is_refused_by_every_exchange(plain_graph: khop.Graph) -> None:
    with over_the_network(plain_graph) as network:
        for exchange in (network, exchange_with(plain_graph)):
            with pytest.raises(InvalidRequest):
                exchange.ask(BATCH, b"no request", read)


def test_every_exchange_returns_the_same_answer_and_its_server(plain_graph: khop.Graph) -> None:
    assert plain_graph.folder is not None
    message = request("list", plain_graph.folder.fingerprint, ListOf(NodesOfSplit("val", ("item",))))
    inside = exchange_with(plain_graph)
    with over_the_network(plain_graph) as network:
        answers = [exchange.ask(CallContext("list"), message, read) for exchange in (network, inside)]
        assert answers[0].server.startswith(network.addresses[0])
    assert answers[0].value == answers[1].value != b""
    assert [(answer.retries, answer.wire_bytes) for answer in answers] == [(0, len(answers[0].value))] * 2


class _Slow(Service):
    """A server that makes the first batch, and needs half a minute for each other one."""

    def __init__(self, graph: khop.Graph) -> None:
        super().__init__(ServedGraph.of(graph), BUILTIN)
        self.ends: list[str] = []
        self._batches = 0

    def accept(self, request: Buffer) -> Job:
        job = super().accept(request)
        self._batches += job.stage.startswith("batch of")
        return replace(job, make=self._slowly) if self._batches > 1 else job

    def _slowly(self, cancelled: Cancelling) -> NoReturn:
        self.ends.append("begun")
        end = time.monotonic() + 30
        while not cancelled() and time.monotonic() < end:
            time.sleep(0.01)
        self.ends[-1] = "cancelled" if cancelled() else "too late"
        raise Cancelled("slow")


def _interrupt(batches: Iterator[khop.Batch], slow: _Slow) -> None:
    def interrupts() -> None:
        wait_until(lambda: "begun" in slow.ends)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupts)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        list(batches)
    thread.join()


def _close(batches: Iterator[khop.Batch], slow: _Slow) -> None:
    wait_until(lambda: "begun" in slow.ends)
    batches.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("end", [_close, _interrupt])
def test_ending_an_epoch_early_cancels_its_requests_instead_of_waiting_for_them(
    plain_graph: khop.Graph, end: Callable[[Iterator[khop.Batch], _Slow], None]
) -> None:
    slow = _Slow(plain_graph)
    with over_the_network(plain_graph, slow) as network:
        graph = graph_on(network)
        loader = khop.Loader(khop.NeighborSampler(graph, [2]), graph.split("train"), 16, prefetch=1)
        batches = loader.epoch(0)
        next(batches)
        end(batches, slow)
    assert set(slow.ends) == {"cancelled"}
