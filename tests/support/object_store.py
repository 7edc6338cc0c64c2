"""An S3 server of this machine, by moto, and the environment of its clients."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import moto.server  # noqa: F401  # tests are skipped without it
from pyarrow import fs

BUCKET, SECRET = "data", "verysecretkey"


@contextmanager
def s3_server(**environment: str) -> Iterator[dict[str, str]]:
    """Start a server, and yield the environment in which khop finds it."""
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
