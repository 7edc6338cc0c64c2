"""Limits of a process, and shared memory."""

from __future__ import annotations

import resource
from pathlib import Path

from cli.doctor.support import by_name
from khop.cli.doctor.findings import FindingState, limits, locked_memory, open_files


def test_limits_that_khop_reaches_are_named(tmp_path: Path) -> None:
    unlimited = resource.RLIM_INFINITY
    assert open_files(256, 4096).remedy == "ulimit -n 1024"
    assert "limits.conf" in open_files(256, 256).remedy
    assert open_files(1024, 1024).state is open_files(unlimited, unlimited).state is FindingState.OK
    assert locked_memory(1 << 16, has_infiniband=True).state is FindingState.WRONG
    assert locked_memory(1 << 16, has_infiniband=False).state is FindingState.OK
    assert by_name(limits(tmp_path / "none"))[str(tmp_path / "none")].state is FindingState.NOTE
