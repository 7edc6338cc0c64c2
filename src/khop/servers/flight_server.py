"""Arrow Flight server: one address, a token on every call, streamed responses with heartbeats."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from khop.servers.access import Address, Buffer, ServerSecurity, Token, Tokens, resolved, token_of
from khop.servers.call_timeouts import Call, CallTimeouts, shut_down
from khop.servers.codec import MAGIC
from khop.servers.errors import Cancelled, InvalidRequest, ServerError, Unauthenticated, WrongVersion
from khop.servers.flight_client import BEAT_HEADER, ERROR, FAULTS, HEARTBEAT, LAST, REQUEST_SIZE
from khop.servers.request_handler import Incoming, RequestHandler, ResponseStream, error_message

_SCHEMA = pa.schema([("bytes", pa.uint8())])
_BEATS_S = (0.05, 5.0)  # of heartbeats, shortest and longest
_UNREAD_S = 60.0  # longest wait for a client to send or read a piece
_UNREAD = CallTimeouts()
_ACCESS = "access"
_NAMES = {"describe": "the graph: schema, splits, counts", "status": "counters of the server"}


def served(
    handler: RequestHandler, address: Address, security: ServerSecurity, unread_s: float = _UNREAD_S
) -> FlightServer:
    """Return a server that listens on the address; ValueError if its security settings do not allow it.

    A client that stops sending its request or reading its answer is disconnected after `unread_s`.
    """
    endpoints = resolved(address)
    security.check([endpoint.number for endpoint in endpoints])
    _check_free(endpoints[0].target)
    tokens = Tokens([token_of(path) for path in security.token_files])
    options: dict[str, Any] = {}
    scheme = "tcp"
    if security.tls_cert is not None and security.tls_key is not None:
        scheme = "tls"
        options["tls_certificates"] = [(security.tls_cert.read_bytes(), security.tls_key.read_bytes())]
    if security.client_ca is not None:
        options |= {"verify_client": True, "root_certificates": security.client_ca.read_bytes()}
    return FlightServer(handler, tokens, unread_s, f"grpc+{scheme}://{endpoints[0].target}", options)


def _check_free(address: Address) -> None:
    """Raise OSError if the port is taken: gRPC would share it with the other process, without an error."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            raise OSError(f"cannot listen on {address}: {error.strerror}; choose another --listen") from None


class _Access(flight.ServerMiddleware):  # type: ignore[misc]
    """The token of one call."""

    def __init__(self, token: Token, beat_s: float) -> None:
        self.token, self.beat_s = token, beat_s


class _CheckAccess(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Middleware that checks the token of each call first."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def start_call(self, info: object, headers: dict[str, Sequence[str | bytes]]) -> _Access:
        """Return the token of the call, or refuse it."""
        try:
            return _Access(self._tokens.holder(_text(headers, "authorization")), _beat(headers))
        except Unauthenticated as error:
            raise flight.FlightUnauthenticatedError(str(error)) from None


def _text(headers: dict[str, Sequence[str | bytes]], name: str) -> str:
    given = (headers.get(name) or [""])[0]
    return given if isinstance(given, str) else given.decode("ascii", "replace")


def _beat(headers: dict[str, Sequence[str | bytes]]) -> float:
    least, most = _BEATS_S
    try:
        return min(most, max(least, float(_text(headers, BEAT_HEADER.decode()) or most)))
    except ValueError:
        return most


class _Exchange:
    """One call: a request in pieces, and the stream to its client."""

    def __init__(self, context: Any, reader: Any, writer: Any, unread_s: float) -> None:  # noqa: ANN401
        self._context, self._reader, self._writer, self._unread_s = context, reader, writer, unread_s

    def receive(self, head: bytes, num_bytes: int, beat_s: float) -> Buffer:
        """Return the request that begins with `head`; send heartbeats while the other pieces arrive.

        Cancelled if the client is gone, or stops sending.
        """
        if len(head) == num_bytes:
            return head
        self.heartbeat()  # the client sends the rest after a first message
        request, filled, last = bytearray(num_bytes), len(head), time.monotonic()
        request[:filled] = head
        with self._watched() as call:
            while filled < num_bytes:
                try:
                    piece = self._reader.read_chunk().app_metadata
                except (StopIteration, *FAULTS):
                    raise Cancelled(f"the client {self._reason(call, 'sent')}") from None
                call.heard()
                end = filled + (0 if piece is None else len(piece))
                if not filled < end <= num_bytes:
                    raise InvalidRequest(f"request: {end:,} bytes of {num_bytes:,} arrived")
                request[filled:end], filled = memoryview(piece), end
                if time.monotonic() - last >= beat_s:
                    self.heartbeat()
                    last = time.monotonic()
        return memoryview(request)

    def heartbeat(self) -> None:
        """Send a heartbeat."""
        self.message(HEARTBEAT)

    def send(self, piece: Buffer) -> None:
        """Send the next piece of the answer, without a copy."""
        array = pa.Array.from_buffers(pa.uint8(), len(piece), [None, pa.py_buffer(piece)])
        self._write(self._writer.write_batch, pa.record_batch([array], schema=_SCHEMA))

    def message(self, text: bytes) -> None:
        """Send a message without a piece."""
        self._write(self._writer.write_metadata, text)

    def _write(self, write: Callable[[Any], object], value: object) -> None:
        """Write to the client; Cancelled if it is gone or stops reading."""
        if self._context.is_cancelled():
            raise Cancelled("the client is gone")
        with self._watched() as call:
            try:
                write(value)
            except FAULTS:
                raise Cancelled(f"the client {self._reason(call, 'read')}") from None

    def _watched(self) -> AbstractContextManager[Call]:
        """Limit the wait for a client: gRPC waits until the connection is closed."""
        return _UNREAD.watching(partial(shut_down, self._context.peer()), self._unread_s, None)

    def _reason(self, call: Call, done: str) -> str:
        return "is gone" if call.ended is None else f"has {done} nothing for {self._unread_s:g} s"


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Flight server that answers clients. It runs on threads of gRPC from its construction on."""

    def __init__(
        self,
        handler: RequestHandler,
        tokens: Tokens,
        unread_s: float,
        location: str,
        options: dict[str, Any],
    ) -> None:
        self._handler, self._unread_s = handler, unread_s
        super().__init__(location, middleware={_ACCESS: _CheckAccess(tokens)}, **options)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:  # noqa: ANN401
        """Answer a request for a batch: pieces and heartbeats, then an error or the end."""
        access: _Access = context.get_middleware(_ACCESS)
        stream = _Exchange(context, reader, writer, self._unread_s)
        client = context.peer()
        try:
            writer.begin(_SCHEMA)
            size, head = _begun(descriptor.command or b"")
            request = Incoming(size, lambda: stream.receive(head, size, access.beat_s))
            back = ResponseStream(stream.heartbeat, stream.send)
            self._handler.answer(request, access.token, client, back, access.beat_s)
            stream.message(LAST)
        except Cancelled:
            return
        except ServerError as error:
            _stated(stream, error)

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:  # noqa: ANN401
        """Answer an action about the graph or the server."""
        access: _Access = context.get_middleware(_ACCESS)
        try:
            yield b"." + self._answer(action.type, access.token)
        except ServerError as error:
            yield ERROR + error_message(error)

    def _answer(self, name: str, token: Token) -> bytes:
        if name == "describe":
            return self._handler.describe(token)
        if name == "status":
            return self._handler.counters(token)
        raise InvalidRequest(f"action {name!r}: there are {', '.join(_NAMES)}")

    def list_actions(self, context: object) -> list[tuple[str, str]]:
        """Return the names of the actions."""
        return list(_NAMES.items())


def _begun(command: bytes) -> tuple[int, bytes]:
    """Return the size of a request, and its first bytes."""
    head = command[REQUEST_SIZE.size :]
    if command.startswith(MAGIC):  # before version 7, a call had the whole request
        raise WrongVersion("request: the client has an earlier khop; install the same on both sides")
    try:
        (size,) = REQUEST_SIZE.unpack(command[: REQUEST_SIZE.size])
    except struct.error:
        size = -1
    if len(head) > size:
        raise InvalidRequest("request: it does not begin with its size; install the same khop on both sides")
    return size, head


def _stated(stream: _Exchange, error: ServerError) -> None:
    try:
        stream.message(ERROR + error_message(error))
    except Cancelled:
        return
