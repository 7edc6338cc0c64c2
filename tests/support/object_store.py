"""Object stores of this machine: a server of S3, by moto, and a folder."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pyarrow import fs

from khop.graph.remote import Location, Store
from support.gate import wait_until

BUCKET, SECRET = "data", "verysecretkey"


@contextmanager
def s3_server(**environment: str) -> Iterator[dict[str, str]]:
    """Start a server, and yield the environment in which khop finds it."""
    import moto.server  # noqa: F401  # tests are skipped without it

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    finally:
        server.kill()
        server.wait()


Reply = tuple[int, list[tuple[str, str]], bytes]  # status, headers and body
REFUSED: Reply = (403, [], b"")  # clients do not try again


@contextmanager
def between(
    environment: Mapping[str, str], answer: Callable[[str, str, Callable[[], Reply]], Reply]
) -> Iterator[str]:
    """Yield the address of a server between clients and an S3 server.

    `answer` gets the method and the path of each request, and a function that sends it to the S3 server.
    """
    at = environment["AWS_ENDPOINT_URL"].removeprefix("http://")
    ongoing: list[object] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            ongoing.append(self)
            try:
                self.answer()
            finally:
                ongoing.remove(self)

        def answer(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            is_chunked = self.headers.get("Transfer-Encoding") == "chunked"
            while is_chunked and (size := int(self.rfile.readline(), 16)):
                sent += self.rfile.read(size)
                self.rfile.readline()
            if is_chunked:
                self.rfile.readline()
            headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}

            def forward() -> Reply:
                connection = HTTPConnection(at)
                body = [sent] if is_chunked else sent
                connection.request(self.command, self.path, body, headers, encode_chunked=is_chunked)
                reply = connection.getresponse()
                return reply.status, reply.getheaders(), reply.read()

            status, headers, body = answer(self.command, self.path, forward)
            self.send_response(status)
            kept = {name: value for name, value in headers if name.lower() not in _OF_CONNECTION}
            is_head = self.command == "HEAD"
            length = next((value for name, value in headers if is_head and name == "Content-Length"), None)
            for name, value in {**kept, "Content-Length": length or str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
            if not isinstance(sys.exc_info()[1], ConnectionError):  # the client was killed
                super().handle_error(request, client_address)

    with Server(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            wait_until(lambda: not ongoing)  # a client that was killed may have requests
            server.shutdown()


_OF_CONNECTION = {"content-length", "transfer-encoding", "connection", "date", "server"}


class Bucket:
    """The files of a bucket, as another tool sees them."""

    def __init__(self, environment: Mapping[str, str], name: str = BUCKET) -> None:
        self._system: Any = fs.S3FileSystem(
            endpoint_override=environment["AWS_ENDPOINT_URL"], allow_bucket_creation=True,
            access_key=environment["AWS_ACCESS_KEY_ID"], secret_key=SECRET, region="us-east-1",
        )  # fmt: skip
        self._name = name
        self._system.create_dir(name)

    def write(self, name: str, content: bytes) -> None:
        """Write a file."""
        with self._system.open_output_stream(f"{self._name}/{name}") as stream:
            stream.write(content)

    def read(self, name: str) -> bytes:
        """Read a file."""
        return bytes(self._system.open_input_file(f"{self._name}/{name}").read())

    def upload(self, folder: Path, name: str) -> None:
        """Write all files of a folder below a name."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.write(f"{name}/{path.relative_to(folder)}", path.read_bytes())

    def names(self, folder: str) -> list[str]:
        """Return the files below a name."""
        found = self._system.get_file_info(
            fs.FileSelector(f"{self._name}/{folder}", recursive=True, allow_not_found=True)
        )
        begin = len(f"{self._name}/{folder}/")
        return sorted(one.path[begin:] for one in found if one.type == fs.FileType.File)

    def folders(self, folder: str) -> list[str]:
        """Return the folders in a folder."""
        found = self._system.get_file_info(fs.FileSelector(f"{self._name}/{folder}"))
        return [one.base_name for one in found if one.type == fs.FileType.Directory]

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._system.delete_file(f"{self._name}/{name}")

    def disconnect(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let khop connect to a port where no server is."""
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")


class FolderStore:
    """Buckets in a folder, with the methods of a pyarrow.fs.FileSystem that khop calls.

    As in a store, a file has an ETag of its bytes, and a folder exists while it has files.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: Any = fs.SubTreeFileSystem(str(root), fs.LocalFileSystem())
        self.get_file_info = self._files.get_file_info
        self.delete_dir = self._files.delete_dir

    def open_input_file(self, path: str) -> OpenedFile:
        """Open a file."""
        return OpenedFile(self._root / path)

    def open_output_stream(self, path: str) -> Any:  # noqa: ANN401
        """Open a new file."""
        (self._root / path).parent.mkdir(parents=True, exist_ok=True)
        return self._files.open_output_stream(path)

    def copy_file(self, source: str, path: str) -> None:
        """Copy a file."""
        self._files.copy_file(source, path)

    def delete_file(self, path: str) -> None:
        """Delete a file, and folders that are empty then."""
        self._files.delete_file(path)
        for folder in list(Path(path).parents)[:-2]:
            if any((self._root / folder).iterdir()):
                break
            (self._root / folder).rmdir()


class OpenedFile(io.FileIO):
    """A file with the ETag that it has when it is opened."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._etag = hashlib.md5(path.read_bytes()).hexdigest()

    def metadata(self) -> dict[str, str]:
        """Return what a store knows of the file."""
        return {"ETag": self._etag}


class FolderBucket:
    """A bucket in a folder, which khop uses for all URLs."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = root / BUCKET
        self._folder.mkdir(parents=True)
        self._system = FolderStore(root)
        monkeypatch.setattr(Location, "opened", lambda location: Store(location, self._system, fs))

    def write(self, name: str, content: bytes) -> None:
        """Write a file."""
        with self._system.open_output_stream(f"{BUCKET}/{name}") as stream:
            stream.write(content)

    def read(self, name: str) -> bytes:
        """Read a file."""
        return (self._folder / name).read_bytes()

    def upload(self, folder: Path, name: str) -> None:
        """Write all files of a folder below a name."""
        shutil.copytree(folder, self._folder / name, dirs_exist_ok=True)

    def names(self, folder: str) -> list[str]:
        """Return the files below a name."""
        found = (self._folder / folder).rglob("*")
        return sorted(str(path.relative_to(self._folder / folder)) for path in found if path.is_file())

    def folders(self, folder: str) -> list[str]:
        """Return the folders in a folder."""
        return [path.name for path in (self._folder / folder).iterdir() if path.is_dir()]

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._system.delete_file(f"{BUCKET}/{name}")

    def disconnect(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let khop find no server."""

        def refused(location: Location) -> Store:
            with location.asking():
                raise OSError("AWS Error NETWORK_CONNECTION during HeadObject operation: connection refused")

        monkeypatch.setattr(Location, "opened", refused)
