"""A rank's first line watches its parent: a process without one ends before it does anything."""

from __future__ import annotations

import os
import subprocess

from khop.distributed.processes.rank_entry import BROKEN, _is_closed
from support.commands import ENVIRONMENT, PROGRAM


def test_a_closed_pipe_is_noticed_also_with_unread_data() -> None:
    ours, parents = os.pipe()
    os.write(parents, b"work")
    assert not _is_closed(ours, timeout_ms=0)
    os.close(parents)
    assert _is_closed(ours, timeout_ms=None)
    os.close(ours)


def test_a_process_whose_parent_is_gone_before_the_work_came_ends_without_a_traceback() -> None:
    ours, parents = os.pipe()
    os.close(parents)
    tracker, unused = os.pipe()
    code = f"from khop.distributed.processes.rank_entry import main; main({ours}, {tracker})"
    ended = subprocess.run(
        [*PROGRAM, code],
        env=ENVIRONMENT,
        pass_fds=(ours, tracker),
        capture_output=True,
        check=False,
        timeout=60,
    )
    for descriptor in (ours, tracker, unused):
        os.close(descriptor)
    assert (ended.returncode, ended.stderr) == (BROKEN, b"")
