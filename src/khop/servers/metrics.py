"""Counters of a server in the text format of Prometheus, over HTTP."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from khop.servers.addresses import Address

_GAUGES = {"waiting", "making", "sending", "draining", "memory_bytes", "uptime_s"} | {
    "service_views",
    "service_view_bytes",
}
_LABELS = {"graph", "fingerprint"}
_OTHER = re.compile(r"[^a-z0-9_]+")


def prometheus_text(status: Mapping[str, object]) -> str:
    """Return the numbers of a status, each with its type; graph and fingerprint are labels of one of them."""
    lines = []
    for key, value in status.items():
        if isinstance(value, int | float) and key != "pid":
            gauge = key in _GAUGES
            name = f"khop_{_OTHER.sub('_', key.lower())}{'' if gauge else '_total'}"
            lines += [f"# TYPE {name} {'gauge' if gauge else 'counter'}", f"{name} {_written(value)}"]
    labels = ",".join(f'{key}="{_escaped(str(status[key]))}"' for key in sorted(_LABELS & status.keys()))
    return "\n".join([*lines, "# TYPE khop_graph gauge", f"khop_graph{{{labels}}} 1", ""])


def _written(value: float) -> str:
    """Return all digits of a number: counters of bytes have more than `g` would print."""
    return str(int(value)) if isinstance(value, int) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class _Metrics(ThreadingHTTPServer):
    """An HTTP server with one page."""

    daemon_threads = True

    def __init__(self, address: Address, status: Callable[[], Mapping[str, object]]) -> None:
        self.status = status
        super().__init__((address.host, address.port), _Page)


class _Page(BaseHTTPRequestHandler):
    server: _Metrics
    timeout = 10

    def do_GET(self) -> None:
        """Answer /metrics."""
        if self.path != "/metrics":
            self.send_error(404)
            return
        text = prometheus_text(self.server.status()).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: scrapes come every few seconds."""


@contextmanager
def metrics_on(address: Address | None, status: Callable[[], Mapping[str, object]]) -> Iterator[int]:
    """Answer scrapes on an address while the block runs; yield the port, 0 without an address."""
    if address is None:
        yield 0
        return
    try:
        server = _Metrics(address, status)
    except OSError as error:
        reason = f"cannot listen on {address} for metrics: {error.strerror}"
        raise OSError(f"{reason}; choose another --metrics") from None
    thread = threading.Thread(target=server.serve_forever, name="khop-metrics", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
