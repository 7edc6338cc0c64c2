"""Ranks start, share, fail and stop together, and none is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import khop
from khop.errors import PeerLost
from processes.ranks import DEADLINE_S, misbehaves, own_loop
from small_folders import write_learnable_graph


def results(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def test_a_loop_of_ones_own_takes_one_course_on_any_number_of_ranks(tmp_path: Path) -> None:
    """23 seeds in steps of 10, 10 and 3, so that with four ranks one gets none of the last."""
    opened = khop.open_graph(write_learnable_graph(tmp_path / "toy"))
    train = opened.split("train")["item"][:23]
    found = {}
    for procs in (1, 4):
        folder = tmp_path / str(procs)
        folder.mkdir()
        khop.launch(own_loop, procs=procs, arguments=(opened, train, str(folder)), device="cpu")
        found[procs] = results(folder)
    assert len(found[4]) == 4
    assert all(of_rank == found[4][0] for of_rank in found[4])
    (alone,), together = found[1], found[4][0]
    assert together["losses"] == pytest.approx(alone["losses"], rel=1e-9)
    assert together["score"] == alone["score"]
    assert together["is_training"] is True


@pytest.mark.parametrize(
    ("how", "error", "sentence"),
    [
        ("raise", RuntimeError, r"rank 1 failed with KeyError: 'mine'(.|\n)*_misbehave"),
        ("input", ValueError, r"^batch_size 0: must be positive$"),
        ("kill", PeerLost, r"^rank 1 was killed by SIGKILL"),
        (
            "hang",
            PeerLost,
            r"rank 1 \(host .*\) did not come within 4 s; last seen computing in epoch 2, step 3\. "
            r"Rank 0 waited exchanging losses in epoch 2, step 3",
        ),
        (
            "evaluates alone",
            PeerLost,
            r"rank 1 is .*, rank 0 called evaluate\(\).*it is collective, call it on every",
        ),
        ("differ", ValueError, r"seed is 1 on rank 1, 0 on rank 0\. Start all of them alike"),
    ],
)
def test_what_goes_wrong_in_one_rank_ends_all_and_is_told(
    how: str, error: type[Exception], sentence: str
) -> None:
    begun = time.monotonic()
    with pytest.raises(error, match=sentence):
        khop.launch(misbehaves, procs=2, arguments=(how,), device="cpu", deadline=DEADLINE_S)
    assert time.monotonic() - begun < 40
    assert children(os.getpid()) == []


def children(pid: int) -> list[int]:
    """The processes of a parent that still run; multiprocessing's tracker stays with its process."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            parent = next(line for line in status.read_text().splitlines() if line.startswith("PPid:"))
            command = (status.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(parent.split()[1]) == pid and b"spawn_main" in command:
            found.append(int(status.parent.name))
    return found


ENDLESS = """
from processes.ranks import misbehaves
import khop

if __name__ == "__main__":
    khop.launch(misbehaves, procs=2, arguments=("endless",), device="cpu")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "parent killed"])
def test_when_the_parent_is_stopped_or_killed_no_rank_is_left(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    parent = subprocess.Popen(
        [sys.executable, script], env=environment, start_new_session=True, stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + 60
    while len(ranks := children(parent.pid)) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(1)  # in the middle of their imports, or of their work, as the machine will
    parent.send_signal(number)
    parent.wait(timeout=30)
    while any(Path(f"/proc/{rank}").exists() for rank in ranks) and time.monotonic() < end:
        time.sleep(0.1)
    assert [rank for rank in ranks if Path(f"/proc/{rank}").exists()] == []


def launched(monkeypatch: pytest.MonkeyPatch, **environment: object) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))


def nothing(rank: int, device: torch.device) -> None:
    """What a rank does that has nothing to do."""


def test_a_rank_that_never_arrives_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launched(monkeypatch, RANK=0, WORLD_SIZE=3, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    with pytest.raises(
        PeerLost, match=r"ranks 1, 2 did not arrive within 0.5 s; those of 3 that did: 0 \(host "
    ):
        khop.launch(nothing, device="cpu", deadline=0.5)


def test_a_port_in_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::", 0))
        taken.listen()
        port = taken.getsockname()[1]
        launched(monkeypatch, RANK=0, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        with pytest.raises(
            OSError, match=rf"port {port} of this machine is taken.*set MASTER_PORT to a free one"
        ):
            khop.launch(nothing, device="cpu", deadline=1.0)


def test_numbers_of_processes_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="procs 0: must be a whole number, 1 or more"):
        khop.launch(nothing, procs=0, device="cpu")
    with pytest.raises(ValueError, match="procs 1000: each needs a GPU of its own, this machine has"):
        khop.launch(nothing, procs=1000, device="cuda")
    launched(monkeypatch, RANK=0, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1")
    with pytest.raises(ValueError, match="procs 3: a launcher has started 2 ranks already"):
        khop.launch(nothing, procs=3, device="cpu")
