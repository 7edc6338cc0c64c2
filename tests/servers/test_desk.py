"""The work of a server on a request, without a network."""

from __future__ import annotations

import threading

import pytest

from khop.servers import desk as module
from khop.servers.access import Tokens
from khop.servers.desk import Desk, error_message, resident_bytes
from khop.servers.errors import Cancelled, GoingAway, InvalidRequest, NotAllowed
from khop.servers.transport import Buffer
from khop.servers.turns import Room
from support.byte_service import ByteService, expected, request

ANYONE = Tokens([]).holder("")


class _Line:
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
    desk, line = Desk(ByteService(), Room()), _Line()
    desk.answer(request(3 << 20, takes=0.5), ANYONE, "a", line, 0.05)
    assert line.beats > 0
    assert b"".join(line.sent) == b"header" + expected(3 << 20)
    status = desk.status()
    assert (status["requests"], status["answers"], status["bytes"]) == (1, 1, 6 + (3 << 20))
    assert (status["waiting"], status["making"], status["sending"]) == (0, 0, 0)
    assert desk.drain(0)


def test_a_request_of_a_client_that_is_gone_is_dropped_while_it_is_made() -> None:
    service, line = ByteService(), _Line()
    line.gone_after = 2
    desk = Desk(service, Room())
    with pytest.raises(Cancelled):
        desk.answer(request(1, takes=60), ANYONE, "a", line, 0.02)
    assert (service.cancelled, service.made) == (1, 0)
    assert desk.drain(0)


def test_a_request_that_waits_for_its_turn_is_dropped_too() -> None:
    service, first, second = ByteService(), _Line(), _Line()
    second.gone_after = 2
    desk = Desk(service, Room(at_once=1))
    thread = threading.Thread(target=desk.answer, args=(request(1, takes=0.5), ANYONE, "a", first, 0.05))
    thread.start()
    while service.at_once == 0:
        pass
    with pytest.raises(Cancelled):
        desk.answer(request(1), ANYONE, "b", second, 0.02)
    thread.join()
    assert service.made == 1


def test_refusals_come_before_the_queue_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, line = Desk(ByteService(), Room()), _Line()
    stranger = type(ANYONE)("alice", b"", ("other",))
    with pytest.raises(NotAllowed):
        desk.answer(request(1), stranger, "a", line, 1)
    monkeypatch.setattr(module, "MOST_REQUEST", 5)
    with pytest.raises(InvalidRequest, match="the most are 5"):
        desk.answer(request(1), ANYONE, "a", line, 1)
    assert desk.status()["failed_not_allowed"] == desk.status()["failed_invalid"] == 1
    desk.drain(0)
    with pytest.raises(GoingAway):
        desk.answer(b"", ANYONE, "a", line, 1)


def test_a_desk_is_idle_between_requests() -> None:
    desk = Desk(ByteService(), Room())
    assert desk.idle_s() < 5
    assert resident_bytes() > 1 << 20
    assert error_message(Cancelled("gone")) == b'{"code": "cancelled", "text": "gone"}'
