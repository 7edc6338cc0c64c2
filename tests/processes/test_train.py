"""`khop train` on many processes: the course of one, whatever is stopped or killed on the way."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from khop.training.checkpoint import load_checkpoint
from khop.training.step_clock import LATE, STAGES
from processes.conftest import EPOCHS, STEPS
from support.commands import (
    ENVIRONMENT,
    PYTHON,
    TORCHRUN,
    free_port,
    records,
    shared_memory_of,
    train,
    train_here,
)
from support.gate import KILLS, WAIT_S, Gate
from support.small_folders import write_learnable_graph


def drift(first: str, second: str) -> float:
    """The largest relative difference of a step's loss."""
    ours, theirs = (records(folder, "steps") for folder in (first, second))
    assert [(r["epoch"], r["step"], r["seeds"]) for r in ours] == [
        (r["epoch"], r["step"], r["seeds"]) for r in theirs
    ]
    return max(abs(a["loss"] - b["loss"]) / abs(a["loss"]) for a, b in zip(ours, theirs, strict=True))


def scores(folder: str) -> list[dict[str, object]]:
    return [{k: v for k, v in record.items() if k != "loss"} for record in records(folder)]


def test_sigterm_writes_a_checkpoint_within_ten_seconds_and_another_number_of_processes_continues(
    run_toml: Path,
) -> None:
    """Two processes begin, one goes on: the losses of each step are those of one from the start, to 1e-9."""
    exactly = ["run.toml", "--precision", "float64", "--dropout", "0", "--schedule", "constant"]
    gate = Gate.shut(Path("gate"), f"update {STEPS + 3}")
    begun = time.monotonic()
    running = subprocess.Popen(
        [*PYTHON, "support.gated_khop", "train", *exactly, "--procs", "2", "--out", "a", "--epochs", "1000"],
        env=ENVIRONMENT | gate.environment,
        text=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with ended_at_last(running):
        ranks = gate.wait_for(2, running)
        told = time.monotonic()
        running.send_signal(signal.SIGTERM)
        out, errors = running.communicate(timeout=WAIT_S)
        # Ten seconds of a machine that has time: one that took longer to start is given as long to stop.
        assert time.monotonic() - told < max(10.0, told - begun)
    assert gate.left() == ranks  # nor had one to be killed
    assert running.returncode == 143
    assert (
        errors
        == "khop: stopped; the last checkpoint is a/checkpoints/last; continue with: khop train --resume a\n"
    )
    assert len(re.findall(r"epoch +1/1000", out)) == 1  # rank 0 alone talks
    assert [pid for pid in ranks if Path(f"/proc/{pid}").exists()] == shared_memory_of(ranks) == []
    assert load_checkpoint(Path("a/checkpoints/last")).training["step"] == 3
    assert_told_apart(Path("a/steps.jsonl"))

    train_here("--resume", "a", "--epochs", "2")
    train_here(*exactly, "--out", "b", "--epochs", "2")
    assert drift("a", "b") < 1e-9
    assert scores("a") == scores("b")


def assert_told_apart(log: Path) -> None:
    """It has every stage of both ranks; in some step one came later than the other to the exchange."""
    steps = [json.loads(line)["seconds"] for line in log.read_text().splitlines()]
    assert len(steps) == STEPS + 3
    for seconds in steps:
        assert tuple(seconds) == (LATE, *STAGES)
        assert {len(of_ranks) for of_ranks in seconds.values()} == {2}
        assert min(seconds[LATE]) == 0
        # Who came first has waited for the other at least for as long as that was late.
        assert seconds["communicating"][seconds[LATE].index(0)] >= max(seconds[LATE])
    assert max(max(seconds[LATE]) for seconds in steps) > 0


def killed_and_restarted(folder: str, procs: int, kills: Iterable[tuple[int, int, float]]) -> None:
    """A run of torchrun's of which one rank after another is killed: (rank, its updates before, seconds).

    torchrun has to bring it to its end by itself.
    """
    plan, planned = list(kills), Path(f"{folder}-kills")
    planned.mkdir()
    (planned / "plan.json").write_text(json.dumps(plan))
    command = ["-m", "support.killed_khop", "train", "run.toml", "--out", folder]
    agent = subprocess.Popen(
        [*TORCHRUN, str(procs), "--max-restarts", str(len(plan)), *command],
        env=ENVIRONMENT | {KILLS: str(planned.resolve())},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with ended_at_last(agent):
        assert agent.wait(timeout=5 * WAIT_S) == 0
    killed = {path.name for path in planned.glob("*.killed-*")}
    assert killed == {f"{rank}.killed-{attempt}" for attempt, (rank, _, _) in enumerate(plan)}


@contextmanager
def ended_at_last(process: subprocess.Popen[str]) -> Iterator[None]:
    """Nothing of it is left when a test fails."""
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def assert_same_result(folder: str, other: str) -> None:
    """Every step's loss, every epoch's scores, and the weights and moments at the end, bit for bit."""
    assert records(folder, "steps") == records(other, "steps")
    assert len(records(folder, "steps")) == EPOCHS * STEPS
    assert records(folder) == records(other)
    for name in ("last", "best"):
        ours, theirs = (load_checkpoint(Path(run, "checkpoints", name)) for run in (folder, other))
        assert ours.training == theirs.training
        for mine, its in ((ours.model, theirs.model), (ours.optimizer, theirs.optimizer)):
            assert mine.keys() == its.keys()
            assert all(torch.equal(mine[key], its[key]) for key in mine)


@pytest.mark.timeout(900)  # half a minute of a free machine: two processes start four times
@pytest.mark.long
def test_ranks_that_are_killed_bring_the_same_result(run_toml: Path) -> None:
    """One in the first epoch, then the other of the restarted group, at some moment of a step."""
    train("run.toml", "--out", "undisturbed", "--procs", "2")
    moment = random.Random(7)
    killed_and_restarted("killed", 2, [(0, 4, moment.random() / 20), (1, 9, moment.random() / 20)])
    assert_same_result("killed", "undisturbed")


@pytest.mark.long
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_ranks_that_are_bound_to_cores_bring_the_same_result(run_toml: Path) -> None:
    exactly = ["run.toml", "--precision", "float64", "--dropout", "0", "--schedule", "constant"]
    train(*exactly, "--out", "one")
    for bind in ("none", "cores"):
        train(*exactly, "--procs", "2", "--bind", bind, "--out", bind)
    assert_same_result("cores", "none")
    assert drift("cores", "one") <= 1e-9


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_twenty_kills_at_random_moments_bring_the_same_result(run_toml: Path) -> None:
    train("run.toml", "--out", "undisturbed", "--procs", "4")
    for number in range(20):
        moment = random.Random(number)
        kill = moment.randrange(4), moment.randrange(1, EPOCHS * STEPS - 4), moment.random() / 10
        killed_and_restarted(f"killed-{number}", 4, [kill])
        assert_same_result(f"killed-{number}", "undisturbed")
        print(f"kill {number + 1} of 20, of rank {kill[0]} after {kill[1]} steps: the same result")


# khop of another version, as far as a run is concerned.
NEWER = "import khop; khop.__version__ = '9.9'; from khop.cli.main import run; run()"


@pytest.mark.long
def test_ranks_that_were_started_unlike_are_named_before_the_first_step(run_toml: Path) -> None:
    write_learnable_graph(Path("other"), nodes=460)
    port = free_port()
    given = {
        0: ["-m", "khop", "train", "run.toml"],
        1: ["-c", NEWER, "train", "run.toml", "--graph", "other", "--seed", "5", "--learning-rate", "0.1"],
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, *arguments],
            env=ENVIRONMENT
            | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for rank, arguments in given.items()
    ]
    for process in ranks:
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 2
        assert errors.startswith("khop: the ranks have different settings: ")
        assert "khop is 9.9 on rank 1, " in errors
        assert "training.seed is 5 on rank 1, 0 on rank 0. Start all ranks with the same settings" in errors
        assert "training.learning_rate is 0.1 on rank 1, 0.03 on rank 0; " in errors
        assert "graph is " in errors


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_debian_takes_the_same_course_on_one_to_four_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for precision in ("float64", "float32"):
        for procs in (1, 2, 3, 4):
            given = ["--precision", precision, "--dropout", "0", "--compute-threads", "1", "--epochs", "4"]
            train("debian", *given, "--procs", str(procs), "--out", f"{precision}-{procs}")
            largest = drift(f"{precision}-1", f"{precision}-{procs}")
            print(
                f"{precision}, {procs} processes: largest relative difference of a step's loss {largest:.2e}"
            )
            # float32 follows the same batches; how far its rounding grows is for the report alone.
            assert precision == "float32" or largest <= 1e-9
