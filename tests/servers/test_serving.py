"""The life of a server."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from khop.servers.access import Tokens
from khop.servers.errors import Cancelled
from khop.servers.main_loop import Life, log_line, serve_until, supervise
from khop.servers.request_handler import QueueLimits, RequestHandler
from servers.test_request_handler import _Stream
from support.byte_service import ByteService, arrived, request
from support.gate import wait_until


def test_a_server_without_requests_ends_after_the_idle_time() -> None:
    said: list[str] = []
    handler = RequestHandler(ByteService(), QueueLimits())
    assert serve_until(handler, Life(exit_idle_s=0.1, log_every_s=0.05), threading.Event(), said.append)
    assert any("answers/s" in line for line in said)
    assert [line for line in said if "answers/s" not in line] == [
        "no request for 0.1 s: ending",
        "shutting down: finishing started requests, refusing new ones",
        "ended",
    ]


def test_a_server_that_is_stopped_finishes_what_it_has_begun() -> None:
    service, stop, line = ByteService(), threading.Event(), _Stream()
    handler, anyone = RequestHandler(service, QueueLimits()), Tokens([]).holder("")
    service.free.clear()

    def frees() -> None:
        wait_until(lambda: bool(handler.status()["draining"]))
        service.free.set()

    asking = threading.Thread(target=handler.answer, args=(arrived(request(5)), anyone, "a", line, 0.1))
    freeing = threading.Thread(target=frees)
    for thread in (asking, freeing):
        thread.start()
    wait_until(lambda: handler.status()["making"] == 1)
    stop.set()
    assert serve_until(handler, Life(), stop, lambda line: None)
    for thread in (asking, freeing):
        thread.join()
    assert len(line.sent) == 2


def test_a_request_that_does_not_end_is_dropped_after_the_drain() -> None:
    service, stop, line = ByteService(), threading.Event(), _Stream()
    handler, anyone = RequestHandler(service, QueueLimits()), Tokens([]).holder("")
    service.free.clear()

    def ask() -> None:
        with pytest.raises(Cancelled):
            handler.answer(arrived(request(5)), anyone, "a", line, 0.05)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: handler.status()["making"] == 1)
    stop.set()
    assert not serve_until(handler, Life(drain_s=0.1), stop, lambda line: None)
    line.gone_after = 0
    thread.join()


def test_a_log_line_counts_what_happened_since_the_last_one() -> None:
    before = {"answers": 10, "bytes": 0, "failed_busy": 1}
    now = {"answers": 70, "bytes": 60_000_000, "failed_busy": 3, "waiting": 4, "making": 2, "sending": 1}
    assert log_line(before, now | {"memory_bytes": 2_500_000_000}, 60) == (
        "1.0 answers/s, 1.0 MB/s, 2 failed, 4 waiting, 2 being made, 1 being sent, 2.5 GB"
    )


def test_processes_that_fail_are_started_again_and_those_that_end_are_not(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys; path = pathlib.Path(sys.argv[1]); path.write_text(path.read_text() + 'x'); "
        "sys.exit(len(path.read_text()) < int(sys.argv[2]))"
    )
    commands = []
    for name, starts in ("a", "2"), ("b", "1"):
        (tmp_path / name).write_text("")
        commands.append([sys.executable, "-c", program, str(tmp_path / name), starts])
    said: list[str] = []
    supervise(commands, Life(), threading.Event(), said.append)
    assert ((tmp_path / "a").read_text(), (tmp_path / "b").read_text()) == ("xx", "x")
    assert len(said) == 1
    assert "code 1" in said[0]


SLEEPS = "import time; time.sleep(600)"
ENDS = (
    "import pathlib, signal, sys, time; "
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(sys.argv[1]))); "
    "pathlib.Path(sys.argv[2]).touch(); time.sleep(600)"
)


def test_processes_end_when_they_are_stopped() -> None:
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    assert supervise([[sys.executable, "-c", SLEEPS]] * 2, Life(), stop, lambda line: None)


@pytest.mark.parametrize("code", [0, 1])
def test_a_process_that_dropped_requests_is_known_at_the_end(tmp_path: Path, code: int) -> None:
    begun = [tmp_path / "a", tmp_path / "b"]
    commands = [
        [sys.executable, "-c", ENDS, str(of_process), str(path)]
        for of_process, path in zip((code, 0), begun, strict=True)
    ]

    class BothRun(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            return all(path.exists() for path in begun) or super().wait(timeout)

    assert supervise(commands, Life(), BothRun(), lambda line: None) == (code == 0)
