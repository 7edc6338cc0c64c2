"""Requests over the network: sockets, TLS, tokens, faults. The batches are bytes here."""

from __future__ import annotations

import json
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow.flight", reason="pip install pyarrow")

import pyarrow as pa
import pyarrow.flight as flight

from khop.errors import PeerLost
from khop.servers import request_handler
from khop.servers.access import Access, Address, CallContext, Limits, ServerSecurity, Tokens, write_token
from khop.servers.call_timeouts import Call
from khop.servers.connections import Pool
from khop.servers.errors import (
    Cancelled,
    GoingAway,
    InvalidAnswer,
    InvalidRequest,
    ServerError,
    TimedOut,
    TooLarge,
    Unauthenticated,
    Unavailable,
    WrongVersion,
)
from khop.servers.flight_client import ERROR, HEARTBEAT, REQUEST_SIZE, connected, flight_dial
from khop.servers.flight_server import FlightServer, served
from khop.servers.request_handler import QueueLimits, RequestHandler
from support.byte_service import ByteService, Trap, expected, request
from support.certificates import Authority
from support.gate import wait_until

LIMITS = Limits(deadline_s=5, attempt_s=2)


@dataclass
class Running:
    service: ByteService
    handler: RequestHandler
    server: FlightServer

    @property
    def address(self) -> str:
        return f"localhost:{self.server.port}"


@contextmanager
def running(
    security: ServerSecurity | None = None,
    limits: QueueLimits | None = None,
    service: ByteService | None = None,
    unread_s: float = 60.0,
) -> Iterator[Running]:
    service = service or ByteService()
    handler = RequestHandler(service, limits or QueueLimits())
    server = served(handler, Address("127.0.0.1", 0), security or ServerSecurity(), unread_s)
    try:
        yield Running(service, handler, server)
    finally:
        server.shutdown()


@contextmanager
def pool_to(*servers: Running, access: Access | None = None, limits: Limits = LIMITS) -> Iterator[Pool]:
    pool = connected([server.address for server in servers], access or Access(), limits)
    try:
        yield pool
    finally:
        pool.close()


def ask(pool: Pool, wanted: bytes, stop: threading.Event | None = None) -> bytes:
    def receive(pieces: Iterator[bytes | memoryview]) -> bytes:
        assert bytes(next(pieces)) == b"header"
        return b"".join(map(bytes, pieces))

    return pool.ask(CallContext("batch", 1, 2, stop), wanted, receive).value


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.of(tmp_path_factory.mktemp("ca"))


@pytest.mark.parametrize("size", [0, 1, 5 << 20])
def test_an_answer_arrives_as_it_was_sent(size: int) -> None:
    with running() as server, pool_to(server) as pool:
        assert ask(pool, request(size)) == expected(size)
        assert b"f1" in pool.describe()


def test_a_batch_slower_than_an_attempt_arrives() -> None:
    limits = Limits(deadline_s=1.5, attempt_s=1.5)
    with running() as server, pool_to(server, limits=limits) as pool:
        assert ask(pool, request(9, takes=2)) == expected(9)
        assert pool.counts["retries"] == 0


def test_tls_with_a_token_works_by_name_and_by_number(tmp_path: Path, authority: Authority) -> None:
    pair = authority.signed("server")
    write_token(tmp_path / "t", ["bytes"])
    security = ServerSecurity((tmp_path / "t",), pair.cert, pair.key)
    access = Access(tmp_path / "t", authority.pair.cert)
    with running(security) as server:
        for address in server.address, f"127.0.0.1:{server.server.port}":
            pool = connected([address], access, LIMITS)
            assert ask(pool, request(100)) == expected(100)
            pool.close()


def _refused(server: Running, access: Access, words: str) -> None:
    with pool_to(server, access=access) as pool, pytest.raises(ServerError, match=words) as raised:
        ask(pool, request(1))
    assert isinstance(raised.value, PermissionError)
    assert pool.counts["attempts"] == 1


def test_wrong_tokens_and_certificates_are_refused_with_a_sentence(
    tmp_path: Path, authority: Authority
) -> None:
    pair, other = authority.signed("server"), Authority.of(tmp_path / "other", "other")
    names = "t", "wrong", "fraud"
    for name in names:
        write_token(tmp_path / name, ["fraud"] if name == "fraud" else ["bytes"])
    security = ServerSecurity((tmp_path / "t", tmp_path / "fraud"), pair.cert, pair.key)
    good = Access(tmp_path / "t", authority.pair.cert)
    with running(security) as server:
        _refused(server, replace(good, token_file=tmp_path / "wrong"), "wrong token")
        _refused(server, replace(good, token_file=None), "no token")
        _refused(server, replace(good, token_file=tmp_path / "fraud"), "may read fraud")
        _refused(server, replace(good, ca=other.pair.cert), "certificate is not trusted")
        _refused(server, replace(good, ca=None), "the server uses TLS")
    far = authority.signed("far", "DNS:far.example")
    with running(ServerSecurity((), far.cert, far.key)) as server:
        _refused(server, good, "certificate is not trusted")
    with running() as server:
        _refused(server, good, "does not use TLS")


def test_a_client_certificate_is_needed_where_the_server_says_so(
    tmp_path: Path, authority: Authority
) -> None:
    pair, own = authority.signed("server"), authority.signed("client")
    stranger = Authority.of(tmp_path / "other", "other").signed("stranger")
    security = ServerSecurity((), pair.cert, pair.key, authority.pair.cert)
    access = Access(ca=authority.pair.cert)
    with running(security) as server:
        _refused(server, access, "client_cert")
        _refused(server, replace(access, client_cert=stranger.cert, client_key=stranger.key), "client_cert")
        with pool_to(server, access=replace(access, client_cert=own.cert, client_key=own.key)) as pool:
            assert ask(pool, request(3)) == expected(3)


def test_a_pickle_on_the_wire_is_refused(tmp_path: Path) -> None:
    with running() as server, pool_to(server) as pool:
        with pytest.raises(InvalidRequest, match="not JSON"):
            ask(pool, pickle.dumps(Trap(tmp_path / "trace")))
        assert ask(pool, request(1)) == expected(1)
    assert not (tmp_path / "trace").exists()


def test_refusals_and_faults_of_the_service_arrive_as_their_own_errors() -> None:
    with running() as server, pool_to(server) as pool:
        with pytest.raises(TooLarge, match="the most are"):
            ask(pool, request(1 << 30))
        with pytest.raises(InvalidRequest, match="KeyError on the server"):
            ask(pool, request(1, bug="a bug"))
        with pytest.raises(OSError, match="no space"):
            ask(pool, request(1, disk="no space"))
        assert ask(pool, request(1)) == expected(1)


def test_a_request_that_is_no_longer_wanted_ends_on_the_server_too() -> None:
    with running() as server, pool_to(server) as pool:
        stop = threading.Event()

        def stops() -> None:
            wait_until(lambda: server.service.at_once == 1)
            stop.set()

        stopping = threading.Thread(target=stops)
        stopping.start()
        with pytest.raises(Cancelled):
            ask(pool, request(1, takes=60), stop)
        stopping.join()
        wait_until(lambda: server.service.cancelled == 1)


def test_a_server_that_drains_finishes_and_refuses_new_requests() -> None:
    with running() as one, running() as two, pool_to(one, two) as pool:
        ask(pool, request(1)), ask(pool, request(1))
        one.service.free.clear()
        with ThreadPoolExecutor(3) as threads:
            answers = [threads.submit(ask, pool, request(7)) for _ in range(2)]
            wait_until(lambda: one.handler.status()["making"] == 1)
            drained = threads.submit(one.handler.drain, 60)
            wait_until(lambda: bool(one.handler.status()["draining"]))
            one.service.free.set()
        assert drained.result()
        assert [answer.result() for answer in answers] == [expected(7)] * 2
        made = one.service.made
        assert ask(pool, request(1)) == ask(pool, request(1)) == expected(1)
        assert one.service.made == made == 2
        with pytest.raises(GoingAway):
            one.handler.describe(Tokens([]).holder(""))


def test_a_greedy_client_does_not_keep_another_from_its_turn() -> None:
    limits = QueueLimits(at_once=1)
    with running(limits=limits) as server, pool_to(server) as greedy, pool_to(server) as other:
        server.service.free.clear()
        with ThreadPoolExecutor(21) as threads:
            for _ in range(20):
                threads.submit(ask, greedy, request(1, name="greedy"))
            wait_until(lambda: server.handler.status()["waiting"] == 19)
            threads.submit(ask, other, request(1, name="other"))
            wait_until(lambda: server.handler.status()["waiting"] == 20)
            server.service.free.set()
        assert len(server.service.order) == 21
        assert server.service.order.index("other") <= 2
        assert server.service.most_at_once == 1


def test_a_full_queue_answers_busy_and_every_request_is_answered_in_the_end() -> None:
    limits = QueueLimits(at_once=1, waiting=2, waiting_per_client=2)
    with running(limits=limits) as server, pool_to(server) as pool:
        answers: list[bytes] = []
        threads = [
            threading.Thread(target=lambda: answers.append(ask(pool, request(3, takes=0.05))))
            for _ in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [expected(3)] * 12
        assert pool.counts["busy"] > 0


def test_a_client_that_stops_reading_is_dropped_and_others_are_answered() -> None:
    with running(limits=QueueLimits(unsent=1), unread_s=0.5) as server, pool_to(server) as pool:
        dial = flight_dial(Access())
        stopped = dial.connect(dial.resolve(Address("127.0.0.1", server.server.port))[0], 5)
        pieces = stopped.batch(request(64 << 20), 1000, float("inf"), None)
        assert bytes(next(pieces)) == b"header"
        wait_until(lambda: server.handler.status().get("failed_cancelled") == 1)
        with pytest.raises(Unavailable):
            list(pieces)
        assert server.handler.status()["sending"] == 0
        assert ask(pool, request(9)) == expected(9)
        stopped.close()


@pytest.mark.parametrize("size", [1 << 15, 1 << 18, (8 << 20) + 7])
def test_a_request_in_several_pieces_arrives_as_it_was_sent(size: int) -> None:
    with running() as server, pool_to(server) as pool:
        assert ask(pool, request(5, more="m" * size)) == expected(5)


def test_a_large_request_is_refused_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_handler, "MOST_REQUEST", 1000)
    with running() as server, pool_to(server) as pool:
        with pytest.raises(InvalidRequest, match="at most 1000 are allowed"):
            ask(pool, request(5, more="m" * (64 << 20)))
        assert ask(pool, request(9)) == expected(9)


def _begun(server: Running, command: bytes) -> tuple[Any, Any]:
    """Begin a call of Flight by hand; return its writer and its reader."""
    client = flight.FlightClient(f"grpc+tcp://127.0.0.1:{server.server.port}")
    return client.do_exchange(flight.FlightDescriptor.for_command(command))


def test_a_client_that_stops_sending_is_dropped_and_others_are_answered() -> None:
    with running(unread_s=0.5) as server, pool_to(server) as pool:
        writer, reader = _begun(server, REQUEST_SIZE.pack(1000))
        writer.write_metadata(b"m" * 400)
        assert reader.read_chunk().app_metadata.to_pybytes() == HEARTBEAT
        with pytest.raises(flight.FlightUnavailableError):
            reader.read_chunk()
        wait_until(lambda: server.handler.status().get("failed_cancelled") == 1)
        assert ask(pool, request(9)) == expected(9)


@pytest.mark.parametrize(
    ("command", "piece", "words"),
    [
        (b"", None, "does not begin with its size"),
        (REQUEST_SIZE.pack(1) + b"12", None, "does not begin with its size"),
        (REQUEST_SIZE.pack(1 << 63), None, "are allowed"),
        (b"khop" + (6).to_bytes(4, "little") + bytes(40), None, "the client has an earlier khop"),
        (REQUEST_SIZE.pack(4) + b"1", b"2345", "5 bytes of 4 arrived"),
    ],
)
def test_a_request_of_another_size_than_it_says_is_refused(
    command: bytes, piece: bytes | None, words: str
) -> None:
    with running() as server:
        writer, reader = _begun(server, command)
        message = reader.read_chunk().app_metadata.to_pybytes()
        if piece is not None:
            assert message == HEARTBEAT
            writer.write_metadata(piece)
            message = reader.read_chunk().app_metadata.to_pybytes()
        assert message[:1] == ERROR
        assert words in json.loads(message[1:])["text"]


def test_a_call_to_a_server_that_accepts_and_says_nothing_ends_after_an_attempt() -> None:
    """gRPC itself waits here, and has no stream yet that could be cancelled."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dial = flight_dial(Access())
        address = Address("127.0.0.1", silent.getsockname()[1])
        connection = dial.connect(dial.resolve(address)[0], 5)
        with pytest.raises(TimedOut, match=r"no heartbeat for 0\.3 s"):
            next(connection.batch(b"request", 0.3, 5, None))
        connection.close()


class _Failing:
    """A stream of an answer, or a client, of which everything fails in one way."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Callable[..., object]:
        def fail(*_: object, **__: object) -> object:
            raise self.error

        return fail


FAULTS = [
    pa.ArrowInvalid("a damaged message"),
    pa.lib.ArrowCancelled("cancelled"),
    pa.ArrowKeyError("no field"),
    flight.FlightInternalError("internal"),
    OSError("the stream ended"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_every_error_of_pyarrow_is_an_error_of_the_server(fault: Exception) -> None:
    dial = flight_dial(Access())
    with running() as server:
        connection = dial.connect(dial.resolve(Address("127.0.0.1", server.server.port))[0], 5)
        connection._client.close()
        connection._client = _Failing(fault)
        for call in (connection.describe, connection.status):
            with pytest.raises(Unavailable):
                call(1)
        with pytest.raises(Unavailable):
            next(connection.batch(b"", 1, 1, None))
        with pytest.raises(Unavailable):
            next(connection._pieces(_Failing(fault), None, memoryview(b""), Call(lambda: None, 1, None, 0)))
        connection._readers.add(_Failing(fault))
        connection.close()


class _OtherServer(flight.FlightServerBase):  # type: ignore[misc]
    """A Flight server that is not khop's."""

    def do_action(self, context: object, action: flight.Action) -> Iterator[bytes]:
        yield b".[]"

    def do_exchange(
        self, context: object, descriptor: object, reader: object, writer: flight.FlightStreamWriter
    ) -> None:
        batch = pa.record_batch({"words": ["no bytes"]})
        writer.begin(batch.schema)
        writer.write_batch(batch)


def test_a_flight_server_of_something_else_is_refused() -> None:
    with _OtherServer("grpc+tcp://127.0.0.1:0") as other:
        pool = connected([f"127.0.0.1:{other.port}"], Access(), LIMITS)
        with pytest.raises(WrongVersion, match="does not describe a graph"):
            ask(pool, request(1))
        pool.close()
        dial = flight_dial(Access())
        connection = dial.connect(dial.resolve(Address("127.0.0.1", other.port))[0], 5)
        with pytest.raises(InvalidAnswer, match="not one column of bytes"):
            next(connection.batch(b"", 5, 5, None))
        connection.close()


class _BrokenServer(flight.FlightServerBase):  # type: ignore[misc]
    """A server whose error messages are damaged."""

    def __init__(self, message: bytes) -> None:
        super().__init__("grpc+tcp://127.0.0.1:0")
        self.message = message

    def do_action(self, context: object, action: flight.Action) -> Iterator[bytes]:
        yield self.message

    def do_exchange(
        self, context: object, descriptor: object, reader: object, writer: flight.FlightMetadataWriter
    ) -> None:
        writer.begin(pa.schema([]))
        writer.write_metadata(self.message)


@pytest.mark.parametrize("message", [b"e{}", b"e[", b"e[1]", b"e3", b"e\xff", b"e" + b"[" * 100_000])
def test_an_error_message_that_is_not_readable_names_the_server(message: bytes) -> None:
    """`Unavailable`, so that another server is asked."""
    with _BrokenServer(message) as broken:
        dial = flight_dial(Access())
        connection = dial.connect(dial.resolve(Address("127.0.0.1", broken.port))[0], 5)
        sentence = f"127.0.0.1:{broken.port}: sent an error that is not readable"
        with pytest.raises(Unavailable, match=sentence):
            connection.status(5)
        with pytest.raises(Unavailable, match=sentence):
            next(connection.batch(b"", 5, 5, None))
        connection.close()


def test_no_server_is_peer_lost_with_the_address() -> None:
    with running() as server:
        address = server.address
    pool = connected([address], Access(), Limits(deadline_s=0.5, attempt_s=0.5))
    with pytest.raises(PeerLost, match=f"batch of epoch 1, step 2: no server.*{address}.*refused"):
        ask(pool, request(1))
    pool.close()


def test_a_token_stays_where_it_is_secret(tmp_path: Path) -> None:
    """Off the loopback a client speaks TLS, so that the token of a wrong address is never sent."""
    write_token(tmp_path / "t")
    dial = flight_dial(Access(tmp_path / "t"))
    assert (tmp_path / "t").read_text().split('"')[1] not in repr(dial)
    with (
        running(ServerSecurity((tmp_path / "t",))) as server,
        pool_to(server) as pool,
        pytest.raises(Unauthenticated),
    ):
        ask(pool, request(1))
