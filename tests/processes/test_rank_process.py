"""Ranks end with the process that started them, at any moment of their start, and leave no zombie.

The parents here start ranks as `khop.launch` does but import no torch themselves, so a test takes a second.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.commands import ENVIRONMENT, children
from support.gate import WAIT_S, wait_until

pytestmark = pytest.mark.real_start

SCRIPT = """
import sys, threading, time
from pathlib import Path

HOME, HOW = Path(sys.argv[1]), sys.argv[2]

if __name__ == "__mp_main__":  # the imports of a rank
    (HOME / f"importing-{time.monotonic_ns()}").touch()
    time.sleep(0.2 if HOW == "thread" else 3600)

def work():
    (HOME / "worked").touch()

if __name__ == "__main__":
    if HOW == "slow interpreter":
        import multiprocessing
        multiprocessing.set_executable(HOME / "python")
    from khop.distributed.processes.spawning import RankProcess
    ranks = [RankProcess(target=work) for _ in range(1 if HOW == "thread" else 3)]
    def start():
        for rank in ranks:
            rank.start()
    if HOW == "thread":
        starting = threading.Thread(target=start)
        starting.start()
        starting.join()
    else:
        start()
    for rank in ranks:
        rank.join()
    print([rank.exitcode for rank in ranks])
"""


def parent_of(home: Path, how: str) -> subprocess.Popen[str]:
    script = home / "script.py"
    script.write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, script, home, how],
        env=ENVIRONMENT,
        start_new_session=True,  # which its ranks keep: so they are found when it is gone
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def of_session(session: int) -> list[str]:
    """The processes of a session, zombies too."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue
        if int(rest.split()[3]) == session:
            found.append(f"{name}) {rest.split()[0]}")
    return found


def killed(parent: subprocess.Popen[str]) -> str:
    """Kill the parent and wait for the rest of its session; what all of them printed."""
    parent.send_signal(signal.SIGKILL)
    parent.wait(timeout=WAIT_S)  # first, or it is a zombie for as long as ranks keep its stdout open
    told, _ = parent.communicate(timeout=WAIT_S)
    wait_until(lambda: of_session(parent.pid) == [])
    return told


def test_ranks_in_the_middle_of_their_imports_end_with_their_parent(tmp_path: Path) -> None:
    parent = parent_of(tmp_path, "imports")
    wait_until(lambda: len(list(tmp_path.glob("importing-*"))) == 3)
    assert killed(parent) == ""


@pytest.mark.parametrize("after_ms", [20, 0, 60])
def test_ranks_end_with_a_parent_that_is_killed_while_it_starts_them(tmp_path: Path, after_ms: int) -> None:
    parent = parent_of(tmp_path, "imports")
    wait_until(lambda: bool(children(parent.pid)))
    time.sleep(after_ms / 1000)
    assert killed(parent) == ""


def test_a_rank_whose_parent_died_before_its_interpreter_began_ends_at_once(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(
        f'#!/bin/sh\nwhile kill -0 $PPID 2>&-; do sleep 0.05; done\nexec {sys.executable} "$@"\n'
    )
    interpreter.chmod(0o755)
    parent = parent_of(tmp_path, "slow interpreter")
    wait_until(lambda: len(children(parent.pid)) == 3)
    assert killed(parent) == ""
    assert list(tmp_path.glob("importing-*")) == []


def test_a_rank_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    told, _ = parent_of(tmp_path, "thread").communicate(timeout=WAIT_S)
    assert told == "[0]\n"
    assert (tmp_path / "worked").exists()
