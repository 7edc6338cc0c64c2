"""Replace a folder of files whole or not at all, whatever moment the process or the machine dies in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path


def replace_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make `folder` hold exactly `files`. After an error it holds what it held before.

    No file system replaces a folder that is not empty in one step, so for an instant the old one stands
    beside, under another name; readers therefore ask `standing_folder` where it is.
    """
    new, old = _beside(folder, "new"), _beside(folder, "old")
    if standing_folder(folder) == old:
        old.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(new, ignore_errors=True)
    try:
        new.mkdir(parents=True)
        for name, content in files.items():
            _write(new / name, content)
        _sync(new)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        raise
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def standing_folder(folder: Path) -> Path:
    """`folder`, or where its content was set aside if a writer died before it put in the new one."""
    old = _beside(folder, "old")
    return old if old.exists() and not folder.exists() else folder


def _beside(folder: Path, suffix: str) -> Path:
    return folder.with_name(f".{folder.name}.{suffix}")


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
