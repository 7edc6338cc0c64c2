"""Runs over two hosts: torchrun on each of them, as their users would start it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from network.hosts import Host
from support.commands import ENVIRONMENT
from support.gate import WAIT_S
from support.held_ranks import Hold

PORT = 29500
RUN = """
    graph = "toy"
    compute_threads = 1
    deadline = 20
    sampler = { fanouts = [4, 3] }
    model = { hidden = 16, dropout = 0.3 }
    training = { epochs = 3, batch_size = 32, learning_rate = 0.03, schedule = "cosine" }
    checkpoint = { steps = 2 }
"""


@dataclass(frozen=True)
class Outcome:
    """How one host's part of a run ended."""

    code: int
    out: str
    errors: str


def torchrun(procs: int, restarts: int = 0) -> list[str]:
    """The launcher of one of two hosts."""
    meeting = [
        "--nnodes",
        "2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"node-a:{PORT}",
        "--rdzv-id",
        "test",
    ]
    own = ["--nproc-per-node", str(procs), "--max-restarts", str(restarts)]
    return [sys.executable, "-m", "torch.distributed.run", *meeting, *own, "-m"]


def started(
    hosts: Sequence[Host],
    *arguments: str,
    command: str = "train",
    procs: int = 1,
    restarts: int = 0,
    hold: Hold | None = None,
) -> list[subprocess.Popen[str]]:
    """`khop train ARGUMENTS`, or another command, on the hosts, with one rank held or none."""
    module = "support.held_ranks" if hold else "khop"
    environment = ENVIRONMENT | {"OMP_NUM_THREADS": "1"} | (hold.environment if hold else {})
    called = [*torchrun(procs, restarts), module, command, *arguments]
    return [host.start(*called, environment=environment) for host in hosts]


def ranks_on(*hosts: Host) -> list[int]:
    """The processes there, without the launchers."""
    return [pid for host in hosts for pid in host.processes(but="torch.distributed.run")]


def await_ranks_end(hosts: Sequence[Host], wait_s: float) -> None:
    """Until no rank is left on the hosts; launchers may be."""
    end = time.monotonic() + wait_s
    while left := ranks_on(*hosts):
        assert time.monotonic() < end, f"processes {left} do not end"
        time.sleep(0.1)


def await_end_of(pids: Sequence[int], hosts: Sequence[Host], wait_s: float) -> float:
    """Until these have ended, whatever the launchers have started since; the seconds that it took."""
    begun = time.monotonic()
    while left := set(pids).intersection(ranks_on(*hosts)):
        assert time.monotonic() < begun + wait_s, f"processes {left} do not end"
        time.sleep(0.1)
    return time.monotonic() - begun


def ended(running: Sequence[subprocess.Popen[str]], wait_s: float = 3 * WAIT_S) -> list[Outcome]:
    """What became of them."""
    found = []
    for process in running:
        out, errors = process.communicate(timeout=wait_s)
        found.append(Outcome(process.returncode, out, errors))
    return found
