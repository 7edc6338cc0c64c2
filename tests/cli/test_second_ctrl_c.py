"""Ctrl-C again and again while a run on two processes ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import khop


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
