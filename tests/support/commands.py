"""Processes that the tests start as a user would: the command, torchrun, scripts; and what they leave."""

from __future__ import annotations

import io
import json
import os
import random
import socket
import subprocess
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path

import pytest
import torch

from support.gate import WAIT_S

PYTHON = [sys.executable, "-W", "error", "-m"]
KHOP = [*PYTHON, "khop", "train"]
PROGRAM = [sys.executable, str(Path(__file__).with_name("program.py"))]  # code and its arguments follow
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
TESTS = Path(__file__).parents[1]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), str(TESTS), *sys.path])}


def train(*arguments: str) -> str:
    """`khop train`, in processes of its own; what it printed."""
    done = subprocess.run(
        [*KHOP, *arguments], env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=WAIT_S * 10
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def train_here(*arguments: str) -> None:
    """`khop train` on this one process, which spares the seconds of importing torch."""
    _here("train", *arguments)


def infer_here(*arguments: str) -> str:
    """`khop infer` on this one process; what it printed."""
    with redirect_stdout(io.StringIO()) as out:
        _here("infer", *arguments)
    return " ".join(out.getvalue().split())


def _here(*command: str) -> None:
    from khop.cli.main import run  # needs more packages than tests of GPUs have

    threads = torch.get_num_threads()
    with pytest.raises(SystemExit) as left:
        run(command)
    torch.set_num_threads(threads)
    assert not left.value.code


def records(folder: str, name: str = "metrics") -> list[dict[str, object]]:
    """The lines of a run's log, but for their seconds."""
    lines = (json.loads(line) for line in Path(folder, f"{name}.jsonl").read_text().splitlines())
    return [{key: value for key, value in record.items() if key != "seconds"} for record in lines]


def children(pid: int) -> list[int]:
    """The spawned processes of a parent that still run; multiprocessing's tracker stays with its process."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            parent = next(line for line in status.read_text().splitlines() if line.startswith("PPid:"))
            command = (status.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(parent.split()[1]) == pid and b"--multiprocessing-fork" in command:
            found.append(int(status.parent.name))
    return found


def of_session(session: int) -> list[int]:
    """The processes of a session that still run; a process that began one has its number."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, own = status.read_text().rpartition(")")[2].split()[:4]
            if int(own) == session and state not in "ZX":
                found.append(int(status.parent.name))
    return found


def shared_memory_of(pids: list[int]) -> list[str]:
    """The files in /dev/shm that torch made in these processes."""
    names = [path.name for path in Path("/dev/shm").iterdir()]
    return [name for name in names if any(name.startswith(f"torch_{pid}_") for pid in pids)]


def free_port() -> int:
    """A port that nobody listens on, nor is given as the near end of a connection before it is used."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(lowest // 2, lowest)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def exit_code(*words: str) -> int:
    """The exit code of a command in this process."""
    from khop.cli.main import run

    with pytest.raises(SystemExit) as left:
        run([*words])
    return int(left.value.code or 0)
