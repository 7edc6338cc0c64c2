"""Lanes of several ranks come in order, may be left early by all, and end with the first error of any."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import khop
from processes.lane_ranks import fails, several_epochs
from support.commands import ENVIRONMENT, WAIT_S, children
from support.started_ranks import StartedRanks


def test_steps_come_in_order_however_fast_ranks_are_and_wherever_they_stop(
    tmp_path: Path, ranks: StartedRanks
) -> None:
    ranks.launch(several_epochs, 3, (str(tmp_path),))
    for rank in range(3):
        told = json.loads((tmp_path / f"{rank}.json").read_text())
        assert told == {"wrong": [], "threads": 0}


@pytest.mark.core(1)
@pytest.mark.parametrize("where", ["in a lane", "in the loop"])
def test_an_error_of_one_rank_ends_all_and_is_reported(where: str) -> None:
    with pytest.raises(RuntimeError, match=r"^rank 1 failed with KeyError: 'mine'"):
        khop.launch(fails, procs=2, arguments=(where,), device="cpu", deadline=WAIT_S)


STOPPED = """
import khop
from processes.lane_ranks import fails

if __name__ == "__main__":
    khop.launch(fails, procs=2, arguments=("stopped",), device="cpu", deadline=240)
"""


@pytest.mark.long
def test_ctrl_c_in_the_middle_of_lanes_leaves_nothing(tmp_path: Path) -> None:
    script = tmp_path / "stopped.py"
    script.write_text(STOPPED)
    parent = subprocess.Popen(
        [sys.executable, script],
        env=ENVIRONMENT,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    ranks: list[int] = []
    for line in parent.stdout:
        if line == "rank 1 has come to step 5\n":
            ranks = children(parent.pid)
            parent.send_signal(signal.SIGINT)
            break
    _, told = parent.communicate(timeout=WAIT_S)
    assert len(ranks) == 2, told
    assert parent.returncode == -signal.SIGINT, told
    assert told.rstrip().endswith("KeyboardInterrupt")
    assert told.count("Traceback") == 1  # the ranks say nothing
    assert [rank for rank in ranks if Path(f"/proc/{rank}").exists()] == []
