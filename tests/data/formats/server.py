"""A real HTTP server of files, which can answer in parts, break connections, and change its files."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class FileServer:
    """Serves a folder; `breaks` cuts the next answers after so many bytes."""

    def __init__(self, folder: Path, breaks: tuple[int, ...] = (), answer: int = 0) -> None:
        self.folder, self.breaks, self.answer = folder, list(breaks), answer
        self.asked: list[str | None] = []  # the Range header of each request
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> FileServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                """Print nothing."""

            def do_GET(self) -> None:
                server.asked.append(self.headers.get("Range"))
                path = server.folder / self.path.lstrip("/")
                if server.answer or not path.is_file():
                    self.send_error(server.answer or 404)
                    return
                data = path.read_bytes()
                tag, first = f'"{hashlib.md5(data).hexdigest()}"', 0
                if self.headers.get("Range") and self.headers.get("If-Range") == tag:
                    first = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
                    if first >= len(data):
                        self.send_error(416)
                        return
                self.send_response(206 if first else 200)
                self.send_header("ETag", tag)
                self.send_header("Content-Length", str(len(data) - first))
                self.end_headers()
                stop = server.breaks.pop(0) if server.breaks else len(data)
                self.wfile.write(data[first : first + stop])

        return Handler
