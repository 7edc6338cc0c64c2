"""Findings on disks: the folders that khop writes to."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.filesize import decimal

from khop.cli.doctor.finding import Finding, State

AREA = "disk"
_LEAST = 1 << 30


def disk(cache: Path, here: Path) -> Iterator[Finding]:
    """Yield the cache folder of the user, the working directory, and the folder of temporary files."""
    yield folder("cache of graphs", cache, "export KHOP_CACHE=/a/larger/disk")
    yield folder("working directory", here, "cd /a/larger/disk (runs/ is made in it)")
    yield folder("temporary files", Path(tempfile.gettempdir()), "export TMPDIR=/a/larger/disk")


def folder(name: str, path: Path, remedy: str) -> Finding:
    """Return the finding on a folder, which need not exist yet."""
    there = next(each for each in (path, *path.parents) if each.exists())
    if not os.access(there, os.W_OK):
        return Finding(AREA, name, f"{path}: no permission to write", State.WRONG, remedy)
    free = shutil.disk_usage(there).free
    found = f"{path}, {decimal(free)} free"
    if free < _LEAST:
        return Finding(AREA, name, f"{found}: little space", State.WRONG, remedy)
    return Finding(AREA, name, found)
