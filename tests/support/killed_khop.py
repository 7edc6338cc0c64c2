"""`python -m support.killed_khop train ...` under torchrun: the command, whose ranks a test kills by plan.

The folder has plan.json: for every attempt that is to be disturbed a rank, its updates before, and seconds.
Until the signal comes the rank goes on, so that this is at any moment of its work, but not to its end.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from itertools import count
from pathlib import Path

from khop.batch import Span
from khop.cli.main import run
from khop.training.step_clock import StepClock
from support.gate import KILLS

FURTHER = 2  # updates that a rank may make once the seconds run
FOLDER = Path(os.environ[KILLS])
RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def kill_soon(seconds: float) -> None:
    """SIGKILL for this process; a file says so."""
    time.sleep(seconds)
    (FOLDER / f"{RANK}.killed-{ATTEMPT}").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def finish(clock: StepClock) -> tuple[Span, ...]:
    """What a step ends with; after the one that is planned the time begins to run."""
    made = next(updates)
    if made == after:
        threading.Thread(target=kill_soon, args=(seconds,), daemon=True).start()
    if made == after + FURTHER:
        threading.Event().wait()
    return finished(clock)


plan = json.loads((FOLDER / "plan.json").read_text())
rank, after, seconds = plan[ATTEMPT] if len(plan) > ATTEMPT else (-1, 0, 0.0)
updates, finished = count(1), StepClock.finish
if rank == RANK:
    StepClock.finish = finish

if __name__ == "__main__":
    run()
