"""A run whose process is killed within an epoch continues with equal bits.

`python -m support.killed_runs VALUES OUT` trains a run of JSON values, and kills itself after a step.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from khop.run.build import prepare
from khop.run.read import RawRun
from khop.run.start import start_from
from khop.training.step_clock import Unwatched
from khop.training.trainer import Trainer

AT = (1, 2)  # epoch and step


class Killed(Unwatched):
    """An observer that kills its process."""

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        if (epoch, step) == AT:
            os.kill(os.getpid(), signal.SIGKILL)


def trainer_of(values: dict[str, Any], out: Path) -> Trainer:
    return prepare(RawRun(values, "run.toml"), out).trainer(out, Unwatched())


def train(values: dict[str, Any], out: Path, observer: Unwatched) -> None:
    """Train a new run, from the weights of `start_from` if it is there."""
    run = prepare(RawRun(values, "run.toml"), out)
    trainer = run.trainer(out, observer)
    start_from(run, trainer)
    trainer.fit()


def killed_and_continued(values: dict[str, Any], home: Path) -> tuple[Path, Path]:
    """Return folders of a run that was killed and continued, and of one that was not.

    `values` need `checkpoint.steps` and steps after those of `AT`.
    """
    whole, killed = home / "whole", home / "killed"
    train(values, whole, Unwatched())
    tests = str(Path(__file__).parent.parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([tests, *sys.path])}
    command = [sys.executable, "-m", "support.killed_runs", json.dumps(values), str(killed)]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    trainer = trainer_of(values, killed)
    trainer.resume()
    assert (trainer.state.epoch, trainer.state.step > 0) == (AT[0], True)
    trainer.fit()
    return killed, whole


if __name__ == "__main__":
    train(json.loads(sys.argv[1]), Path(sys.argv[2]), Killed())
