"""Ranks that hold parts of a graph are killed while others wait for what they hold: nothing is lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

import khop
from processes.conftest import STEPS
from processes.test_train import ended_at_last
from support.commands import ENVIRONMENT, PYTHON, TORCHRUN, children, infer_here, records, train_here
from support.gate import WAIT_S, Gate
from support.held_ranks import Hold, Moment

EXACTLY = ("--precision", "float64", "--dropout", "0", "--epochs", "2")
CHUNKS = ("--evaluation-batch-size", "20")


@pytest.fixture
def parts(run_toml: Path) -> tuple[str, ...]:
    """A run on two parts, of which each rank holds the edges and columns of its own alone."""
    khop.partition_graph("toy", "toy-2", 2)
    return (str(run_toml), "--graph", "toy-2", "--placement", "all", *EXACTLY)


@pytest.mark.long
def test_a_rank_that_is_killed_in_an_exchange_is_started_again_and_the_run_takes_the_course_of_one_process(
    parts: tuple[str, ...],
) -> None:
    """In a lane that asks for what step 4 needs; the other rank waits for its answer."""
    Path("hold").mkdir()
    hold = Hold(Path("hold").resolve(), rank=1, epoch=1, step=4, moment=Moment.EXCHANGES)
    held = [*TORCHRUN, "2", "--max-restarts", "1", "-m", "support.held_ranks"]
    agent = subprocess.Popen(
        [*held, "train", *parts, "--out", "killed"],
        env=ENVIRONMENT | hold.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with ended_at_last(agent):
        held = hold.wait(agent)
        os.kill(held, signal.SIGKILL)
        hold.release()
        train_here(*parts, "--out", "alone")
        _, errors = agent.communicate(timeout=5 * WAIT_S)
    assert re.search(rf"failed \(exitcode: -9\) local_rank: 1 \(pid: {held}\)", errors), errors
    assert agent.returncode == 0, errors
    for log, lines in (("steps", 2 * STEPS), ("metrics", 2)):
        killed, alone = records("killed", log), records("alone", log)
        assert len(killed) == lines
        for line, beside in zip(killed, alone, strict=True):
            assert line.pop("traffic")
            assert line == pytest.approx(beside, rel=1e-9)


@pytest.mark.long
def test_an_inference_of_which_a_rank_is_killed_names_it_and_continues_to_the_same_bytes(
    parts: tuple[str, ...],
) -> None:
    """Both have their first chunk on the disk; the other process is not left behind."""
    train_here(*parts, "--out", "a")
    infer_here("a", "--out", "whole.npy", *CHUNKS)
    gate = Gate.shut(Path("gate"), "chunk 1")
    running = subprocess.Popen(
        [*PYTHON, "support.gated_khop", "infer", "a", "--out", "rows.npy", "--procs", "2", *CHUNKS],
        env=ENVIRONMENT | gate.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with ended_at_last(running):
        ranks = gate.wait_for(2, running)
        os.kill(ranks[0], signal.SIGKILL)
        _, errors = running.communicate(timeout=WAIT_S)
    assert running.returncode == 1
    assert re.match(r"khop: rank [01] was killed by SIGKILL", errors), errors
    assert children(running.pid) == []
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    assert not Path("rows.npy").exists()
    assert "continues from rows.npy.unfinished" in infer_here("a", "--out", "rows.npy", *CHUNKS)
    assert Path("rows.npy").read_bytes() == Path("whole.npy").read_bytes()
    assert not Path("rows.npy.unfinished").exists()
