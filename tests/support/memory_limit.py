"""Control groups that limit the memory of a process, of version 1 or 2; they need root."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")


@contextmanager
def memory_limit(limit_bytes: int) -> Iterator[Path | None]:
    """Yield a group of that much memory, files included; None where it cannot be made."""
    is_first = (GROUPS / "memory").is_dir()
    group = (GROUPS / "memory" if is_first else GROUPS) / f"khop-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if is_first else "memory.max")).write_text(str(limit_bytes))
    except OSError:
        if group.is_dir():
            group.rmdir()
        yield None
        return
    try:
        yield group
    finally:
        group.rmdir()


def python_in(group: Path | None, script: str, *arguments: object) -> str:
    """Run lines of Python in a group, or in none, and return what they print."""

    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=enter,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
