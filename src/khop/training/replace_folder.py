"""Atomic replacement of a folder of files, safe if the process or the machine dies at any moment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from khop.graph.atomic import flush_entries


def push_folder(folder: Path, files: Mapping[str, bytes], keep: int, place: int = 0) -> None:
    """Write `files` to `folder`, and move its earlier content to folder-1, folder-2, ...; keep `keep` in all.

    With a place above 0, the files go to folder-place, and only the folders from there on move.

    After an error all folders hold their earlier content. A kill between two renames leaves a gap in the
    numbers; the remaining folders are intact. Readers take the first of `pushed_folders`.
    """
    if keep == 1:
        replace_folder(folder, files)
        return
    new = _written_beside(folder, files)
    older = [folder, *(folder.with_name(f"{folder.name}-{age}") for age in range(1, keep))][place:]
    shutil.rmtree(older[-1], ignore_errors=True)
    for young, old in zip(older[-2::-1], older[:0:-1], strict=True):
        if young.exists():
            young.rename(old)
    new.rename(older[0])
    flush_entries(folder.parent)


def pushed_folders(folder: Path) -> list[Path]:
    """List the folders that `push_folder` has left, the newest first."""
    ages = [
        path
        for path in folder.parent.glob(f"{folder.name}-*")
        if path.name[len(folder.name) + 1 :].isdecimal()
    ]
    older = sorted(ages, key=lambda path: int(path.name[len(folder.name) + 1 :]))
    return [path for path in [existing_folder(folder), *older] if path.is_dir()]


def make_youngest(folder: Path, kept: Path) -> None:
    """Rename `kept`, one of the `pushed_folders`, to `folder`; the newer folders were found damaged.

    The oldest damaged folder stays as folder-damaged, so that `push_folder` never removes an intact one in
    its favor.
    """
    for younger in pushed_folders(folder):
        if younger == kept:
            break
        aside = folder.with_name(f"{folder.name}-damaged")
        shutil.rmtree(aside, ignore_errors=True)
        younger.rename(aside)
    if kept != folder:
        kept.rename(folder)
        flush_entries(folder.parent)


def replace_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make `folder` hold exactly `files`. After an error it holds its earlier content.

    No file system can replace a non-empty folder in one step. For an instant the old folder is therefore next
    to it under another name; readers ask `existing_folder` for the path.
    """
    old = _beside(folder, "old")
    if existing_folder(folder) == old:
        old.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
    new = _written_beside(folder, files)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    flush_entries(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def existing_folder(folder: Path) -> Path:
    """Path of the content: `folder`, or its backup if a writer died before it renamed the new folder."""
    old = _beside(folder, "old")
    return old if old.exists() and not folder.exists() else folder


def _written_beside(folder: Path, files: Mapping[str, bytes]) -> Path:
    new = _beside(folder, "new")
    shutil.rmtree(new, ignore_errors=True)
    try:
        new.mkdir(parents=True)
        for name, content in files.items():
            _write(new / name, content)
        flush_entries(new)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return new


def _beside(folder: Path, suffix: str) -> Path:
    return folder.with_name(f".{folder.name}.{suffix}")


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
