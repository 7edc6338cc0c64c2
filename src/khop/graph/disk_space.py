"""Space on the disk, checked before long work begins."""

from __future__ import annotations

import shutil
from pathlib import Path

from khop.graph.progress import in_bytes

_SPARE = 1.02  # headers, and what file systems keep beside the data


def check_disk(path: Path, needed: int, what: str) -> None:
    """Raise ValueError if the disk of a folder to write has too little space; `what` names the bytes."""
    there = path.resolve()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if needed * _SPARE > free:
        raise ValueError(
            f"{path}: {what} needs {in_bytes(needed)} of disk; {in_bytes(free)} are free; "
            "free some space or write to another disk"
        )
