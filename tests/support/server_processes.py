"""Servers as processes of their own, as `khop serve` starts them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import khop
from khop.errors import PeerLost

ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "passive"}
Starts = Callable[..., "Server"]


@dataclass(eq=False)
class Server:
    """One `khop serve`."""

    process: subprocess.Popen[str]
    address: str

    @property
    def port(self) -> int:
        """Port that it listens on."""
        return int(self.address.rpartition(":")[2])

    def send(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the process and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def status(self, *options: str | Path) -> dict[str, object]:
        """Return its counters, as `khop servers status` prints them."""
        words = [
            sys.executable,
            "-m",
            "khop",
            "servers",
            "status",
            self.address,
            "--json",
            *map(str, options),
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=ENVIRONMENT)
        found: dict[str, object] = json.loads(done.stdout)[self.address]
        return found


def started(graph: Path | str, *options: str | Path, listen: str = "127.0.0.1:0") -> Server:
    """Start a server, and wait until it serves."""
    words = [sys.executable, "-m", "khop", "serve", str(graph), "--listen", listen, *map(str, options)]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("serving "):
        raise AssertionError(f"no server: {line}{process.communicate()[1]}")
    return Server(process, line.split()[-1])


@contextmanager
def servers() -> Iterator[Starts]:
    """Yield a function that starts servers. All are gone after the block."""
    with ExitStack() as stack:

        def start(graph: Path | str, *options: str | Path, listen: str = "127.0.0.1:0") -> Server:
            server = started(graph, *options, listen=listen)
            stack.callback(_end, server.process)
            return server

        yield start


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.kill()
    process.communicate()


def until_lost(batches: Iterator[khop.Batch], lost: list[PeerLost]) -> Iterator[khop.Batch]:
    """Yield batches until the servers are lost, and keep the error."""
    try:
        yield from batches
    except PeerLost as error:
        lost.append(error)
