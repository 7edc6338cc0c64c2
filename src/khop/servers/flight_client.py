"""Connections to servers over Arrow Flight.

Only this module and flight_server.py import pyarrow.flight.
"""

from __future__ import annotations

import json
import ssl
import struct
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from khop.servers.access import (
    BEATS,
    Access,
    Buffer,
    Endpoint,
    Limits,
    parsed_addresses,
    secret_of,
)
from khop.servers.call_timeouts import Call, CallTimeouts, End, shut_down
from khop.servers.codec import parsed_description
from khop.servers.connections import Dial, Pool, check_server, speaks_tls
from khop.servers.errors import (
    Cancelled,
    InvalidAnswer,
    ServerError,
    TimedOut,
    Unauthenticated,
    Unavailable,
    WrongVersion,
    of_code,
)

BEAT_HEADER = b"khop-beat"
HEARTBEAT, ERROR, LAST = b"h", b"e", b"."
# The descriptor of a call has the size of the request and its first bytes, few enough for gRPC to accept at
# once. The rest follows in pieces after a message from the server, which may also refuse the request.
REQUEST_SIZE = struct.Struct("<Q")
_REQUEST_HEAD = 1 << 15
_REQUEST_PIECE = 1 << 18  # each piece must be sent within an attempt
FAULTS = (flight.FlightError, pa.ArrowException, OSError)  # of a connection, in any state
_TIMEOUTS = CallTimeouts()
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # another connection's failures do not delay this one
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.enable_http_proxy", 0),
)


def fingerprint_of(description: bytes) -> str:
    """Return the fingerprint in a description."""
    return str(parsed_description(description).get("fingerprint", ""))


def connected(
    addresses: Sequence[str],
    access: Access,
    limits: Limits,
    identity: Callable[[bytes], str] = fingerprint_of,
) -> Pool:
    """Return several servers as one. Connections are opened at the first request."""
    return Pool(parsed_addresses(addresses), flight_dial(access), limits, identity)


def flight_dial(access: Access) -> Dial:
    """Return functions that resolve addresses and connect to servers over the network."""
    secret = None if access.token_file is None else secret_of(access.token_file)
    roots = None if access.encryption == "off" else _roots(access.ca)
    own = None if access.client_cert is None else _pair(access)

    def connect(endpoint: Endpoint, timeout_s: float) -> FlightConnection:
        check_server(endpoint, access, timeout_s)
        scheme = "tls" if access.encrypts(endpoint) else "tcp"
        options: dict[str, Any] = {"generic_options": list(_OPTIONS)}
        if scheme == "tls":
            options |= {"tls_root_certs": roots, "override_hostname": endpoint.address.host}
            if own is not None:
                options |= {"cert_chain": own[0], "private_key": own[1]}
        try:
            client = flight.FlightClient(f"grpc+{scheme}://{endpoint.target}", **options)
        except FAULTS as error:
            raise Unavailable(f"{endpoint}: {_sentence(error)}") from None
        return FlightConnection(client, endpoint, secret, scheme)

    return Dial(connect)


def _roots(ca: Path | None) -> bytes | None:
    path = ca or ssl.get_default_verify_paths().cafile
    return None if path is None else Path(path).read_bytes()


def _pair(access: Access) -> tuple[bytes, bytes]:
    assert access.client_cert is not None
    assert access.client_key is not None
    return access.client_cert.read_bytes(), access.client_key.read_bytes()


class FlightConnection:
    """A connection to one server (a Connection)."""

    def __init__(
        self, client: flight.FlightClient, endpoint: Endpoint, secret: str | None, scheme: str
    ) -> None:
        self._client, self._endpoint, self._scheme = client, endpoint, scheme
        self._headers = [] if secret is None else [(b"authorization", f"Bearer {secret}".encode())]
        self._readers: set[Any] = set()
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """Address of the server."""
        return str(self._endpoint)

    def describe(self, timeout_s: float) -> bytes:
        """Return the description of the server's graph."""
        try:
            return self._action("describe", timeout_s)
        except Unavailable:
            if self._scheme == "tcp" and speaks_tls(self._endpoint, timeout_s):
                raise Unauthenticated(
                    f"{self.address}: the server uses TLS; give the CA of its certificate as ca"
                ) from None
            raise

    def status(self, timeout_s: float) -> bytes:
        """Return the counters of the server, in JSON."""
        return self._action("status", timeout_s)

    def batch(
        self, request: bytes, attempt_s: float, deadline_s: float, stop: threading.Event | None
    ) -> Generator[Buffer]:
        """Yield the header of the answer, then its pieces."""
        beat = f"{attempt_s / BEATS:.3f}".encode()
        timeout = None if deadline_s == float("inf") else deadline_s
        options = flight.FlightCallOptions(timeout=timeout, headers=[*self._headers, (BEAT_HEADER, beat)])
        # Until there is a stream to cancel, only closing the connection ends a call.
        cut = partial(shut_down, f"ip:{self._endpoint.target}")
        with _TIMEOUTS.watching(cut, attempt_s, stop) as call:
            try:
                head = REQUEST_SIZE.pack(len(request)) + request[:_REQUEST_HEAD]
                writer, reader = self._client.do_exchange(flight.FlightDescriptor.for_command(head), options)
            except FAULTS as error:
                raise self._failure(error, call) from None
            call.cancel = reader.cancel
            with self._lock:
                self._readers.add(reader)
            try:
                if call.ended is not None:  # ended just before the stream existed
                    reader.cancel()
                yield from self._pieces(writer, reader, memoryview(request)[_REQUEST_HEAD:], call)
            finally:
                with self._lock:
                    self._readers.discard(reader)
                _end(reader.cancel)
                _end(writer.close)

    def _pieces(
        self,
        writer: Any,  # noqa: ANN401
        reader: Any,  # noqa: ANN401
        rest: memoryview,
        call: Call,
    ) -> Generator[Buffer]:
        """Send the rest of the request, and yield the header and the pieces of the answer."""
        try:
            if rest:
                self._is_last(reader.read_chunk().app_metadata.to_pybytes())
                call.heard()
            for start in range(0, len(rest), _REQUEST_PIECE):
                writer.write_metadata(pa.py_buffer(rest[start : start + _REQUEST_PIECE]))
                call.heard()  # the server accepts the pieces as they arrive
            writer.done_writing()
            while True:
                chunk = reader.read_chunk()
                call.heard()
                if chunk.data is not None:
                    yield _piece(chunk.data)
                    call.heard()  # the time of the consumer does not count as the server's
                elif self._is_last(chunk.app_metadata.to_pybytes()):
                    return
        except StopIteration:
            raise Unavailable(f"{self.address}: the response was cut off") from None
        except ServerError:  # some are OSErrors too
            raise
        except FAULTS as error:
            raise self._failure(error, call) from None

    def close(self) -> None:
        """Close the connection; requests under way end with an error."""
        with self._lock:
            readers = list(self._readers)
        for reader in readers:
            _end(reader.cancel)
        _end(self._client.close)

    def _action(self, name: str, timeout_s: float) -> bytes:
        options = flight.FlightCallOptions(timeout=timeout_s, headers=self._headers)
        try:
            (result,) = self._client.do_action(flight.Action(name, b""), options)
        except FAULTS as error:
            raise self._failure(error) from None
        except ValueError:  # no result, or several
            raise WrongVersion(f"{self.address}: does not respond like a khop server to {name!r}") from None
        body: bytes = result.body.to_pybytes()
        self._is_last(body if body[:1] == ERROR else LAST)
        return body[1:]

    def _is_last(self, message: bytes) -> bool:
        """Return True for the last message of an answer; raise the error that a message states."""
        if message[:1] != ERROR:
            return message[:1] == LAST
        try:
            stated = json.loads(message[1:])
            code, text = str(stated["code"]), str(stated["text"])
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise Unavailable(
                f"{self.address}: sent an error that is not readable ({type(error).__name__}: {error})"
            ) from None
        raise of_code(code, text)

    def _failure(self, error: Exception, call: Call | None = None) -> ServerError:
        if call is not None and call.ended is End.STOPPED:
            return Cancelled(f"{self.address}: the request was cancelled")
        if call is not None and call.ended is End.TIMED_OUT:
            return TimedOut(f"{self.address}: no heartbeat for {call.silence_s:g} s")
        if isinstance(error, flight.FlightUnauthenticatedError):
            return Unauthenticated(f"{self.address}: {_sentence(error)}")
        if isinstance(error, flight.FlightTimedOutError):
            return TimedOut(f"{self.address}: no answer in time")
        return Unavailable(f"{self.address}: the connection was lost ({_sentence(error)})")


def _sentence(error: Exception) -> str:
    """Return the message of a pyarrow error without the context that gRPC appends."""
    text = str(error).partition(". gRPC client debug context")[0]
    return text.partition("with message: ")[2] or text


def _piece(batch: pa.RecordBatch) -> memoryview:
    """Return the bytes of a piece, without a copy."""
    column = batch.column(0) if batch.num_columns == 1 else None
    if column is None or column.type != pa.uint8() or column.null_count:
        raise InvalidAnswer(f"a piece of an answer: is {batch.schema}, not one column of bytes")
    return memoryview(column.buffers()[1])[column.offset : column.offset + len(column)]


def _end(ending: Callable[[], object]) -> None:
    """Close a stream or a connection, which may have failed before."""
    with suppress(*FAULTS):
        ending()
