"""`python -m support.gated_khop train ...`: the command, whose processes wait at the gate of a test.

Spawned ranks import this module too, as their main one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from khop.process_tuning import tune_before_torch

tune_before_torch()

from khop.cli.main import run  # noqa: E402
from khop.inference import chunks, work_folder  # noqa: E402
from khop.training.step_clock import StepClock  # noqa: E402
from support.gate import Gate  # noqa: E402

POINTS = {
    "update": (StepClock, "finish"),
    "lap": (StepClock, "lap"),  # a stage of an update: waiting, ..., gradients, ..., saving
    "opened": (work_folder.WorkFolder, "open"),  # the file of a stage
    "drawn": (chunks, "drawn"),  # the nodes of a chunk, in a thread that works ahead
    "written": (work_folder, "write_rows"),  # the rows of a chunk, without their journal
    "chunk": (work_folder.FileRows, "put"),  # with it
    "stage": (work_folder.FileRows, "finished"),
}


def flushed(put: Callable[..., None]) -> Callable[..., None]:
    """The same, but with each chunk on disk and in the journal at once."""

    def called(rows: work_folder.FileRows, *arguments: object) -> None:
        put(rows, *arguments)
        rows.flush()

    return called


def gated(function: Callable[..., object], number: int) -> Callable[..., object]:
    """The same, but for standing at the gate after its `number`-th call in this process."""
    calls = count(1)

    def called(*arguments: object, **named: object) -> object:
        result = function(*arguments, **named)
        if next(calls) == number:
            Gate.of_this_process().stand()
        return result

    return called


work_folder.FileRows.put = flushed(work_folder.FileRows.put)  # type: ignore[method-assign]
point, number = Gate.of_this_process().point.split()
owner, name = POINTS[point]
setattr(owner, name, gated(getattr(owner, name), int(number)))

if __name__ == "__main__":
    run()
