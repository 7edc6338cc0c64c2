"""`khop train` on many processes: the course of one, whatever is killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from khop.training.step_clock import LATE, STAGES
from small_folders import write_learnable_graph

KHOP = [sys.executable, "-W", "error", "-m", "khop", "train"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2] / "src"), *sys.path])
}
WAIT_S = 120


@pytest.fixture
def run_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of six epochs of twelve steps, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    write_learnable_graph(tmp_path / "toy")
    path = tmp_path / "run.toml"
    path.write_text("""
        graph = "toy"
        compute_threads = 1
        deadline = 60
        sampler = { fanouts = [4, 3] }
        model = { hidden = 16, dropout = 0.3 }
        training = { epochs = 6, batch_size = 32, learning_rate = 0.03 }
        checkpoint = { steps = 3 }
    """)
    return path


def train(*arguments: str) -> str:
    done = subprocess.run(
        [*KHOP, *arguments], env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=WAIT_S * 10
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def records(folder: str, name: str = "metrics") -> list[dict[str, object]]:
    lines = (json.loads(line) for line in Path(folder, f"{name}.jsonl").read_text().splitlines())
    return [{key: value for key, value in record.items() if key != "seconds"} for record in lines]


def drift(first: str, second: str) -> float:
    """The largest relative difference of a step's loss."""
    ours, theirs = (records(folder, "steps") for folder in (first, second))
    assert [(r["epoch"], r["step"], r["seeds"]) for r in ours] == [
        (r["epoch"], r["step"], r["seeds"]) for r in theirs
    ]
    return max(abs(a["loss"] - b["loss"]) / abs(a["loss"]) for a, b in zip(ours, theirs, strict=True))


def scores(folder: str) -> list[dict[str, object]]:
    return [{k: v for k, v in record.items() if k != "loss"} for record in records(folder)]


def test_any_number_of_processes_takes_the_same_course_and_another_number_goes_on(run_toml: Path) -> None:
    exactly = ["--precision", "float64", "--dropout", "0"]
    train("run.toml", *exactly, "--out", "one")
    out = train("run.toml", *exactly, "--out", "three", "--procs", "3", "--epochs", "3")
    assert out.count("epoch 3/3") == 1  # rank 0 alone talks
    train("--resume", "three", "--procs", "2", "--epochs", "6")
    assert drift("one", "three") < 1e-9
    assert scores("one") == scores("three")
    seconds = json.loads(Path("three/steps.jsonl").read_text().splitlines()[-1])["seconds"]
    assert {len(of_ranks) for of_ranks in seconds.values()} == {2}
    assert tuple(seconds) == (LATE, *STAGES)
    assert min(seconds[LATE]) == 0 < max(seconds[LATE])
    # Who came first to the exchange has waited for the other at least for as long as that was late.
    assert seconds["communicating"][seconds[LATE].index(0)] >= max(seconds[LATE])


def victim(rank: int) -> int | None:
    """The process of a rank under torchrun."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
            command = (process / "cmdline").read_bytes()
            here = (process / "cwd").resolve() == Path.cwd()
        except OSError:
            continue
        if here and f"LOCAL_RANK={rank}".encode() in environment and b"khop" in command:
            return int(process.name)
    return None


def wait_for_steps(folder: str, count: int) -> None:
    """Until so many steps are on disk: steps.jsonl is written with every checkpoint."""
    log, end = Path(folder, "steps.jsonl"), time.monotonic() + WAIT_S
    while not (log.exists() and log.read_text().count("\n") >= count):
        assert time.monotonic() < end, "the run does not come on"
        time.sleep(0.01)


def killed_and_restarted(folder: str, rank: int, after: int) -> None:
    """A run of torchrun's, one of whose four ranks is killed; torchrun has to bring it to its end."""
    agent = subprocess.Popen(
        [*TORCHRUN, "--max-restarts", "1", "-m", "khop", "train", "run.toml", "--out", folder],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for_steps(folder, after)
        pid = victim(rank)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert agent.wait(timeout=WAIT_S) == 0
    finally:
        agent.kill()
        agent.wait()


def test_a_rank_that_is_killed_brings_the_same_result(run_toml: Path) -> None:
    train("run.toml", "--out", "undisturbed", "--procs", "4")
    for rank, after in ((0, 7), (2, 40)):
        killed_and_restarted(f"killed-{rank}", rank, after)
        assert records(f"killed-{rank}", "steps") == records("undisturbed", "steps")
        assert records(f"killed-{rank}") == records("undisturbed")


def test_sigterm_writes_a_checkpoint_within_ten_seconds_and_the_run_goes_on(run_toml: Path) -> None:
    command = [*KHOP, "run.toml", "--procs", "2", "--out", "a", "--epochs", "1000", "--checkpoint-steps", "5"]
    running = subprocess.Popen(
        command, env=ENVIRONMENT, text=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    wait_for_steps("a", 20)
    begun = time.monotonic()
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate(timeout=WAIT_S)
    assert time.monotonic() - begun < 10
    assert running.returncode == 143
    assert (
        errors
        == "khop: stopped; the last checkpoint is a/checkpoints/last; go on with: khop train --resume a\n"
    )
    epochs = str(len(records("a")) + 1)
    train("--resume", "a", "--procs", "2", "--epochs", epochs)
    train("run.toml", "--procs", "2", "--out", "b", "--epochs", epochs)
    assert records("a", "steps") == records("b", "steps")
    assert records("a") == records("b")


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_twenty_kills_at_any_moment_bring_the_same_result(run_toml: Path) -> None:
    train("run.toml", "--out", "undisturbed", "--procs", "4")
    for number in range(20):
        killed_and_restarted(f"killed-{number}", rank=number % 4, after=3 + number * 3)
        assert records(f"killed-{number}", "steps") == records("undisturbed", "steps")
        assert records(f"killed-{number}") == records("undisturbed")


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_debian_takes_the_same_course_on_one_to_four_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for precision, limit in (("float64", 1e-9), ("float32", 0.05)):
        for procs in (1, 2, 3, 4):
            given = ["--precision", precision, "--dropout", "0", "--compute-threads", "1"]
            train("debian", *given, "--procs", str(procs), "--out", f"{precision}-{procs}")
            largest = drift(f"{precision}-1", f"{precision}-{procs}")
            print(
                f"{precision}, {procs} processes: largest relative difference of a step's loss {largest:.2e}"
            )
            assert largest <= limit
