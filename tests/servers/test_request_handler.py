"""The work of a server on a request, without a network."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from khop.servers import request_handler as module
from khop.servers.access import Role, Token, Tokens
from khop.servers.errors import (
    Busy,
    Cancelled,
    GoingAway,
    InvalidRequest,
    MachineFailed,
    NotAllowed,
    ServerError,
)
from khop.servers.fair_queue import Client, QueueLimits
from khop.servers.request_handler import (
    SMALL_REQUEST,
    Incoming,
    RequestHandler,
    error_message,
    resident_bytes,
)
from khop.servers.transport import Buffer
from support.byte_service import ByteJob, ByteService, arrived, expected, request

ANYONE = Tokens([]).holder("")
BETWEEN = Token("between", b"", role=Role.SERVER)
ONE, OTHER = Client("a", "a"), Client("b", "b")


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


def test_a_request_that_waits_for_its_turn_is_dropped_too() -> None:
    service, first, second = ByteService(), _Stream(), _Stream()
    second.gone_after = 2
    handler = RequestHandler(service, QueueLimits(at_once=1))
    thread = threading.Thread(
        target=handler.answer, args=(arrived(request(1, takes=0.5)), ANYONE, ONE, first, 0.05)
    )
    thread.start()
    while service.at_once == 0:
        pass
    with pytest.raises(Cancelled):
        handler.answer(arrived(request(1)), ANYONE, OTHER, second, 0.02)
    thread.join()
    assert service.made == 1


def test_refusals_come_before_the_queue_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    handler, stream = RequestHandler(ByteService(), QueueLimits()), _Stream()
    stranger = type(ANYONE)("alice", b"", ("other",))
    with pytest.raises(NotAllowed):
        handler.answer(arrived(request(1)), stranger, ONE, stream, 1)
    monkeypatch.setattr(module, "MOST_REQUEST", 5)
    with pytest.raises(InvalidRequest, match="the most are 5"):
        handler.answer(arrived(request(1)), ANYONE, ONE, stream, 1)
    assert handler.status()["failed_not_allowed"] == handler.status()["failed_invalid"] == 1
    handler.drain(0)
    with pytest.raises(GoingAway):
        handler.answer(arrived(b""), ANYONE, ONE, stream, 1)


def test_a_request_without_room_for_its_bytes_is_refused_before_they_come() -> None:
    """Servers ask each other without a bound, as batches wait for these answers; small requests have none."""
    handler = RequestHandler(ByteService(), QueueLimits(request_bytes_per_owner=50))
    body, received = request(9), list[str]()

    def answer(token: Token, client: Client, num_bytes: int = SMALL_REQUEST + 1) -> None:
        def receive() -> bytes:
            received.append(client.owner)
            return body

        handler.answer(Incoming(num_bytes, receive), token, client, _Stream(), 1)

    with pytest.raises(Busy, match="0 of a, and no room for 32,769 more"):
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
    assert resident_bytes() > 1 << 20
    assert error_message(Cancelled("gone")) == b'{"code": "cancelled", "text": "gone"}'


def test_requests_of_a_token_are_bounded_in_rate() -> None:
    handler, stream = RequestHandler(ByteService(), QueueLimits(), max_rate=2), _Stream()
    handler.answer(arrived(request(1)), ANYONE, ONE, stream, 1)
    handler.answer(arrived(request(1)), ANYONE, Client("a", "another connection"), stream, 1)
    with pytest.raises(Busy, match="more than 2 requests per second"):
        handler.answer(arrived(request(1)), ANYONE, ONE, stream, 1)
    handler.answer(arrived(request(1)), ANYONE, OTHER, stream, 1)
    assert handler.status()["failed_busy"] == 1


def test_questions_have_a_rate_of_their_own_for_each_client() -> None:
    """A token at its rate of batches still sees the counters, and no client asks for them without end."""
    handler, stream = RequestHandler(ByteService(), QueueLimits(), max_rate=2), _Stream()
    for _ in range(2):
        handler.answer(arrived(request(1)), ANYONE, ONE, stream, 1)
    assert json.loads(handler.counters(ANYONE, ONE))["answers"] == 2
    assert handler.describe(ANYONE, Client("a", "another connection")) == ByteService().description()
    for ask in (handler.describe, handler.counters):
        with pytest.raises(Busy, match="more than 2 requests per second"):
            ask(ANYONE, ONE)
        assert ask(ANYONE, Client(f"of {ask.__name__}", "b"))
    assert all(handler.describe(BETWEEN, ONE) for _ in range(5))


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
