"""The work of a server on a request, without a network.

Queues of clients at a server.

Metrics of a server for Prometheus.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NoReturn

import pytest

from khop.servers import request_handler as module
from khop.servers.access import Address, Buffer, Role, Token, Tokens
from khop.servers.errors import (
    Busy,
    Cancelled,
    GoingAway,
    InvalidRequest,
    MachineFailed,
    NotAllowed,
    ServerError,
)
from khop.servers.main_loop import metrics_on, prometheus_text
from khop.servers.request_handler import (
    SMALL_REQUEST,
    ClientQueues,
    Incoming,
    QueuedRequest,
    QueueLimits,
    RequestHandler,
    RequestStage,
    error_message,
)
from khop.servers.service import Job
from support.byte_service import ByteJob, ByteService, arrived, expected, request
from support.gate import wait_until

ANYONE = Tokens([]).holder("")
BETWEEN = Token("between", b"", role=Role.SERVER)
ONE, OTHER = "a", "b"


class _Stream:
    """The way back to a client that may be gone."""

    def __init__(self) -> None:
        self.beats = 0
        self.sent: list[bytes] = []
        self.gone_after = 1 << 30

    def heartbeat(self) -> None:
        self.beats += 1
        if self.beats > self.gone_after:
            raise Cancelled("gone")

    def send(self, piece: Buffer) -> None:
        self.sent.append(bytes(piece))


def test_an_answer_has_heartbeats_while_it_is_made_and_then_its_pieces() -> None:
    handler, stream = RequestHandler(ByteService(), QueueLimits()), _Stream()
    handler.answer(arrived(request(3 << 20, takes=0.5)), ANYONE, ONE, stream, 0.05)
    assert stream.beats > 0
    assert b"".join(stream.sent) == b"header" + expected(3 << 20)
    status = handler.status()
    assert (status["requests"], status["answers"], status["bytes"]) == (1, 1, 6 + (3 << 20))
    assert (status["waiting"], status["making"], status["sending"]) == (0, 0, 0)
    assert handler.drain(0)


def test_a_request_of_a_client_that_is_gone_is_dropped_while_it_is_made() -> None:
    service, stream = ByteService(), _Stream()
    stream.gone_after = 2
    handler = RequestHandler(service, QueueLimits())
    with pytest.raises(Cancelled):
        handler.answer(arrived(request(1, takes=60)), ANYONE, ONE, stream, 0.02)
    assert (service.cancelled, service.made) == (1, 0)
    assert handler.drain(0)


@pytest.mark.parametrize("holder", [ANYONE, BETWEEN])
def test_an_answer_that_is_never_made_is_an_error_after_the_limit(holder: Token) -> None:
    """The job ignores its cancellation, as a read of a disk that hangs."""
    freed = threading.Event()

    def hang(cancelled: Callable[[], bool]) -> NoReturn:
        freed.wait()
        raise OSError("the disk is back")

    class Hanging(ByteService):
        def accept(self, given: Buffer) -> Job:  # type: ignore[override]
            return Job("batch", None, hang, holder.role)

    handler, stream = RequestHandler(Hanging(), QueueLimits(making_s=1)), _Stream()
    with pytest.raises(MachineFailed, match="not made in 1 s, and its thread may hang"):
        handler.answer(arrived(request(1)), holder, ONE, stream, 0.05)
    assert stream.beats > 2
    assert (handler.status()["making"], handler.status()["failed_machine"]) == (0, 1)
    freed.set()


def test_a_request_that_waits_for_its_turn_is_dropped_too() -> None:
    service, first, second = ByteService(), _Stream(), _Stream()
    second.gone_after = 2
    handler = RequestHandler(service, QueueLimits(at_once=1))
    service.free.clear()
    thread = threading.Thread(target=handler.answer, args=(arrived(request(1)), ANYONE, ONE, first, 0.05))
    thread.start()
    wait_until(lambda: service.at_once == 1)
    with pytest.raises(Cancelled):
        handler.answer(arrived(request(1)), ANYONE, OTHER, second, 0.02)
    service.free.set()
    thread.join()
    assert service.made == 1


def test_refusals_come_before_the_queue_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    handler, stream = RequestHandler(ByteService(), QueueLimits()), _Stream()
    stranger = type(ANYONE)("alice", b"", ("other",))
    with pytest.raises(NotAllowed):
        handler.answer(arrived(request(1)), stranger, ONE, stream, 1)
    monkeypatch.setattr(module, "MOST_REQUEST", 5)
    with pytest.raises(InvalidRequest, match="at most 5 are allowed"):
        handler.answer(arrived(request(1)), ANYONE, ONE, stream, 1)
    assert handler.status()["failed_not_allowed"] == handler.status()["failed_invalid"] == 1
    handler.drain(0)
    with pytest.raises(GoingAway):
        handler.answer(arrived(b""), ANYONE, ONE, stream, 1)


def test_a_request_without_room_for_its_bytes_is_refused_before_they_come() -> None:
    """Servers ask each other without a bound, as batches wait for these answers; small requests have none."""
    handler = RequestHandler(ByteService(), QueueLimits(request_bytes_per_client=50))
    body, received = request(9), list[str]()

    def answer(token: Token, client: str, num_bytes: int = SMALL_REQUEST + 1) -> None:
        def receive() -> bytes:
            received.append(client)
            return body

        handler.answer(Incoming(num_bytes, receive), token, client, _Stream(), 1)

    with pytest.raises(Busy, match="0 of a, but no room for 32,769 more"):
        answer(ANYONE, ONE)
    answer(BETWEEN, OTHER)
    answer(ANYONE, ONE, 60)
    assert received == ["b", "a"]


class _DrainedMeanwhile(ByteService):
    """Reads a request while another thread begins to end the server."""

    def __init__(self, drain: Callable[[], bool]) -> None:
        super().__init__()
        self.drain = drain

    def accept(self, given: Buffer) -> ByteJob:
        job = super().accept(given)
        self.drain()
        return job


def test_a_request_between_servers_that_has_arrived_is_answered_by_a_server_that_ends() -> None:
    drained: list[bool] = []
    ending = threading.Thread(target=lambda: drained.append(handler.drain(60)))

    def drain() -> bool:
        ending.start()
        while not handler.status()["draining"]:
            time.sleep(0.001)
        return True

    handler, stream = RequestHandler(_DrainedMeanwhile(drain), QueueLimits()), _Stream()
    handler.answer(arrived(request(9, role="server")), BETWEEN, ONE, stream, 1)
    ending.join(60)
    assert (drained, b"".join(stream.sent)) == ([True], b"header" + expected(9))


@pytest.mark.parametrize("role", list(Role))
def test_a_request_that_a_server_no_longer_waits_for_may_go_to_another_server(role: Role) -> None:
    handler = RequestHandler(_DrainedMeanwhile(lambda: handler.drain(0)), QueueLimits())
    with pytest.raises(GoingAway):
        handler.answer(arrived(request(9, role=role.value)), BETWEEN, ONE, _Stream(), 1)


def test_a_machine_without_room_for_a_thread_is_no_fault_of_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    handler = RequestHandler(ByteService(), QueueLimits())
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", full)
        with pytest.raises(MachineFailed, match="can't start new thread"):
            handler.answer(arrived(request(9)), ANYONE, ONE, _Stream(), 1)
    handler.answer(arrived(request(9)), ANYONE, ONE, _Stream(), 1)  # once there is room again


def test_a_desk_is_idle_between_requests() -> None:
    handler = RequestHandler(ByteService(), QueueLimits())
    assert handler.idle_s() < 5
    assert error_message(Cancelled("gone")) == b'{"code": "cancelled", "text": "gone"}'


def test_questions_need_no_turn() -> None:
    handler, stream = RequestHandler(ByteService(), QueueLimits()), _Stream()
    for _ in range(2):
        handler.answer(arrived(request(1)), ANYONE, ONE, stream, 1)
    assert json.loads(handler.counters(ANYONE))["answers"] == 2
    assert handler.describe(ANYONE) == ByteService().description()


class _LateFuture(Future[Iterator[memoryview]]):
    """A future whose result comes when the wait for it has just ended."""

    def result(self, timeout: float | None = None) -> Iterator[memoryview]:
        if not self.done():
            self.set_result(iter([memoryview(b"header")]))
            raise TimeoutError
        return super().result(timeout)


class _LateMakers(ThreadPoolExecutor):
    def submit(self, *arguments: object, **keywords: object) -> Future[Any]:  # type: ignore[override]
        return _LateFuture()


def test_an_answer_that_comes_just_after_a_heartbeat_is_due_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ThreadPoolExecutor", _LateMakers)
    handler, stream = RequestHandler(ByteService(), QueueLimits()), _Stream()
    handler.answer(arrived(request(1)), ANYONE, ONE, stream, 1)
    assert stream.sent == [b"header"]


def test_the_traceback_of_a_mistake_is_in_the_log_and_other_errors_are_not(
    capfd: pytest.CaptureFixture[str],
) -> None:
    handler, stream = RequestHandler(ByteService(), QueueLimits()), _Stream()
    for fault, shown in (("bug", True), ("disk", False)):
        with pytest.raises(ServerError):
            handler.answer(arrived(request(1, **{fault: "of a test"})), ANYONE, ONE, stream, 1)
        log = capfd.readouterr().err
        assert ("Traceback" in log, "KeyError: 'of a test'" in log) == (shown, shown)


def test_clients_are_served_in_turn_whatever_they_ask() -> None:
    queue = ClientQueues(QueueLimits(at_once=1))
    with ExitStack() as stack:
        asked = [stack.enter_context(queue.queued("greedy")) for _ in range(5)]
        asked += [stack.enter_context(queue.queued("other")) for _ in range(2)]
        served = []
        for _ in range(7):
            (queued,) = (queued for queued in asked if queued.stage is RequestStage.MAKING)
            served.append(queued.client)
            _end(queue, queued)
    assert served == ["greedy", "greedy", "other", "greedy", "other", "greedy", "greedy"]
    assert queue.empty(0)


def _end(queue: ClientQueues, queued: QueuedRequest) -> None:
    with queue._changed:
        queue._begun.discard(queued)
        queued.stage = RequestStage.SENDING
        queue._admit()


def test_no_more_batches_are_made_at_once_than_there_is_room_for() -> None:
    queue = ClientQueues(QueueLimits(at_once=2))
    with ExitStack() as stack:
        asked = [stack.enter_context(queue.queued(f"client {number}")) for number in range(5)]
        assert [queued.stage for queued in asked] == [RequestStage.MAKING] * 2 + [RequestStage.WAITING] * 3
        assert queue.wait(asked[1], 0)
        assert not queue.wait(asked[2], 0)
        assert queue.counts() == {"waiting": 3, "making": 2, "sending": 0}
    assert queue.empty(0)


def test_a_client_that_does_not_read_gets_no_further_batches_made_and_blocks_nobody() -> None:
    queue = ClientQueues(QueueLimits(at_once=1, unsent=2))
    with ExitStack() as stack:
        slow = [stack.enter_context(queue.queued("slow")) for _ in range(3)]
        for queued in slow[:2]:
            assert queue.wait(queued, 0)
            queue.made(queued)
        assert not queue.wait(slow[2], 0)
        with queue.queued("other") as queued:
            assert queue.wait(queued, 0)


def test_full_queues_answer_busy() -> None:
    queue = ClientQueues(QueueLimits(at_once=1, waiting=3, waiting_per_client=2))
    with ExitStack() as stack:
        for client in ("a", "a", "a"):  # one is made, two wait
            stack.enter_context(queue.queued(client))
        with pytest.raises(Busy, match="2 of this client"), queue.queued("a"):
            pass
        stack.enter_context(queue.queued("b"))
        with pytest.raises(Busy, match="3 queued requests"), queue.queued("c"):
            pass
    assert queue.empty(0)


def test_bytes_of_requests_are_bounded_for_each_client_and_in_all() -> None:
    queue = ClientQueues(QueueLimits(request_bytes=10, request_bytes_per_client=6))
    with ExitStack() as stack:
        stack.enter_context(queue.admitted("a", 4))
        with pytest.raises(Busy, match="4 of a, but no room for 3 more"), queue.admitted("a", 3):
            pass
        stack.enter_context(queue.admitted("b", 6))
        with pytest.raises(Busy, match="10 bytes of requests, 0 of c"), queue.admitted("c", 1):
            pass
        stack.enter_context(queue.admitted("server", 0))
        assert not queue.empty(0)
    assert queue.empty(0)
    with queue.admitted("a", 6):
        pass


def test_draining_finishes_what_waits_and_takes_nothing_new() -> None:
    queue = ClientQueues(QueueLimits(at_once=1))
    with ExitStack() as stack:
        first, second = (stack.enter_context(queue.queued("a")) for _ in range(2))
        queue.drain()
        assert queue.is_draining
        assert not queue.empty(0)
        with pytest.raises(GoingAway), queue.queued("a"):
            pass
        queue.made(first)
        assert queue.wait(second, 0)
    assert queue.empty(0)


def test_room_is_of_whole_numbers() -> None:
    with pytest.raises(ValueError, match="at_once 0"):
        QueueLimits(at_once=0)


STATUS = {
    "graph": 'a"b',
    "pid": 7,
    "waiting": 3,
    "requests": 12,
    "service_refused, wrong-graph": 2,
    "draining": False,
}


def test_numbers_are_gauges_or_counters_with_names_of_prometheus() -> None:
    assert prometheus_text(STATUS).splitlines() == [
        "# TYPE khop_waiting gauge",
        "khop_waiting 3",
        "# TYPE khop_requests_total counter",
        "khop_requests_total 12",
        "# TYPE khop_service_refused_wrong_graph_total counter",
        "khop_service_refused_wrong_graph_total 2",
        "# TYPE khop_draining gauge",
        "khop_draining 0",
        "# TYPE khop_graph gauge",
        'khop_graph{graph="a\\"b"} 1',
    ]


@pytest.mark.parametrize(
    ("value", "written"),
    [(999_999, "999999"), (1_234_567_891, "1234567891"), ((1 << 53) + 1, "9007199254740993"),
     (1234567.9, "1234567.9"), (0.5, "0.5"), (True, "1")],
)  # fmt: skip
def test_no_digit_of_a_counter_is_lost(value: float, written: str) -> None:
    assert prometheus_text({"bytes": value}).splitlines()[1] == f"khop_bytes_total {written}"


def test_they_are_read_over_ipv6_too() -> None:
    with (
        metrics_on(Address("::1", 0), lambda: STATUS) as port,
        urllib.request.urlopen(f"http://[::1]:{port}/metrics", timeout=10) as answer,
    ):
        assert answer.read().decode() == prometheus_text(STATUS)


def test_they_are_read_over_http_at_one_path() -> None:
    with metrics_on(Address("127.0.0.1", 0), lambda: STATUS) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert answer.read().decode() == prometheus_text(STATUS)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)
        refused.value.close()
        with pytest.raises(OSError, match="another --metrics"), metrics_on(Address("127.0.0.1", port), dict):
            pass
    with metrics_on(None, dict) as port:
        assert port == 0
