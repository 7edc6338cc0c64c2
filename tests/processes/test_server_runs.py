"""A run over servers that are killed, by trainers that change in number: the losses of a local run."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("pyarrow.flight", reason="pip install pyarrow")

from support.commands import ENVIRONMENT, KHOP, train
from support.server_processes import servers
from support.small_folders import write_learnable_graph

RUN = """
    graph = "toy"
    compute_threads = 1
    sampler = { fanouts = [4, 3] }
    model = { hidden = 16, dropout = 0.0 }
    training = { epochs = 6, batch_size = 32, learning_rate = 0.03 }
    checkpoint = { steps = 2 }
"""


def losses(folder: str) -> list[tuple[int, int, float]]:
    """Epoch, step and loss of each step of a run."""
    lines = map(json.loads, Path(folder, "steps.jsonl").read_text().splitlines())
    return [(line["epoch"], line["step"], line["loss"]) for line in lines]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_servers_are_killed_and_the_world_size_changes_within_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three trainers are stopped by Ctrl-C at some step, and two continue; one of two servers is killed."""
    monkeypatch.chdir(tmp_path)
    write_learnable_graph(tmp_path / "toy", nodes=450)
    Path("run.toml").write_text(RUN)
    train("run.toml", "--out", "local")
    with servers() as start:
        running = [start("toy"), start("toy")]
        addresses = ",".join(each.address for each in running)
        words = [*KHOP, "run.toml", "--out", "far", "--servers", addresses, "--procs", "3"]
        with subprocess.Popen(words, env=ENVIRONMENT, stderr=subprocess.DEVNULL) as trainers:
            _await_steps("far", 13, trainers)
            trainers.send_signal(signal.SIGINT)
        stopped = len(losses("far"))
        assert 13 <= stopped < len(losses("local"))
        running[0].kill()
        train("--resume", "far", "--procs", "2")
    found, expected = losses("far"), losses("local")
    assert [step[:2] for step in found] == [step[:2] for step in expected]
    # Without dropout, which is drawn for each rank, only the order of float32 sums depends on their number.
    apart = max(abs(one[2] - other[2]) / other[2] for one, other in zip(found, expected, strict=True))
    print(f"losses differ by at most {apart:.1e}")
    assert apart < 1e-4


def _await_steps(folder: str, steps: int, trainers: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 300
    while not Path(folder, "steps.jsonl").exists() or len(losses(folder)) < steps:
        assert trainers.poll() is None, "the run ended before it could be stopped"
        assert time.monotonic() < end
        time.sleep(0.01)
