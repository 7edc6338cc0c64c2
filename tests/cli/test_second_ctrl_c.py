"""Ctrl-C while the command starts, while a run on two processes starts, and again while it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import khop
from support.commands import ENVIRONMENT, children, of_session
from support.gate import WAIT_S, wait_until

# As the script that pip writes. It tells when Ctrl-C is handled by khop.
SCRIPT = """
from khop.cli.interrupts import end_at_once
end_at_once()
print(".", flush=True)
from khop.__main__ import main
main()
"""
EARLY = """
import __future__, importlib, os, signal, sys
sys.path[:], known = PATH, set(sys.modules)
import khop.__main__
print(*sorted(set(sys.modules) - known))
"""


def test_little_is_imported_before_ctrl_c_is_handled() -> None:
    """Until then, Ctrl-C ends Python with a traceback."""
    words = [sys.executable, "-I", "-S", "-c", EARLY.replace("PATH", repr(sys.path))]
    found = subprocess.run(words, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["khop", "khop.__main__", "khop.cli", "khop.cli.interrupts"]


@pytest.mark.parametrize("milliseconds", [0, 5, 20, 50, 100, 200, 400])
def test_ctrl_c_while_modules_load_is_one_line(milliseconds: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "info", "debian"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == ".\n"
        time.sleep(milliseconds / 1000)
        started.send_signal(signal.SIGINT)
        _, said = started.communicate(timeout=WAIT_S)
    assert (started.returncode, said) in ((130, "khop: stopped\n"), (0, ""))  # 0: it was done


STARTS = {"group": os.killpg, "main process": os.kill}
LATER = [pytest.param(whom, n / 4, marks=pytest.mark.long) for n in range(0, 40, 2) for whom in STARTS]


@pytest.mark.long
@pytest.mark.real_start  # signals meet imports
@pytest.mark.parametrize(("whom", "seconds"), [("group", 0.0), ("main process", 0.5), *LATER])
def test_ctrl_c_while_ranks_start_is_one_line(small_run: Path, whom: str, seconds: float) -> None:
    """Always "stopped", exit code 130 and no process: whatever the rank has reached by then."""
    started = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "khop",
            "train",
            "run.toml",
            "--procs",
            "2",
            "--epochs",
            "100000",
            "--out",
            "a",
        ],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: bool(children(started.pid)))
    time.sleep(seconds)
    STARTS[whom](started.pid, signal.SIGINT)
    _, said = started.communicate(timeout=WAIT_S)
    assert started.returncode == 130, said
    assert said.startswith("khop: stopped")
    assert said.count("\n") == 1
    wait_until(lambda: not of_session(started.pid))


@pytest.mark.long
def test_more_ctrl_c_than_one_end_in_no_traceback(small_run: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(khop.__file__).parents[1])}
    words = ["train", "run.toml", "--procs", "2", "--epochs", "100000", "--out", "a"]
    with subprocess.Popen(
        [sys.executable, "-m", "khop", *words], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        steps = Path("a", "steps.jsonl")
        while process.poll() is None and not (steps.is_file() and steps.stat().st_size):
            time.sleep(0.1)
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert "Exception ignored" not in said
