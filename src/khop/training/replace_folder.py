"""Atomic replacement of a folder of files, safe against a crash of the process or the machine.

Files of a checkpoint have digests, which are verified before their content is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import khop
from khop.graph.atomic import backup_of, flush_entries


def push_folder(folder: Path, files: Mapping[str, bytes], keep: int, place: int = 0) -> None:
    """Write `files` to `folder`, and move earlier content to folder-1, folder-2, ...; keep `keep` in total.

    With a place above 0, the files are written to folder-place, and only the folders from there on are
    renamed.

    After an error, all folders have their earlier content. A kill between two renames leaves a gap in the
    numbers; the remaining folders are intact. Readers use the first of `pushed_folders`.
    """
    if keep == 1:
        replace_folder(folder, files)
        return
    new = _written_beside(folder, files)
    older = [folder, *(folder.with_name(f"{folder.name}-{age}") for age in range(1, keep))][place:]
    remove_folder(older[-1])
    for young, old in zip(older[-2::-1], older[:0:-1], strict=True):
        if young.exists():
            young.rename(old)
    new.rename(older[0])
    flush_entries(folder.parent)


def pushed_folders(folder: Path) -> list[Path]:
    """List the folders written by `push_folder`, newest first."""
    ages = [
        path
        for path in folder.parent.glob(f"{folder.name}-*")
        if path.name[len(folder.name) + 1 :].isdecimal()
    ]
    older = sorted(ages, key=lambda path: int(path.name[len(folder.name) + 1 :]))
    return [path for path in [existing_folder(folder), *older] if path.is_dir()]


def make_youngest(folder: Path, kept: Path) -> None:
    """Rename `kept`, one of the `pushed_folders`, to `folder`, because newer folders are damaged.

    The oldest damaged folder is renamed to folder-damaged, so that `push_folder` does not delete an intact
    folder and keep a damaged one.
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


def renumber(folder: Path, kept: Sequence[Path]) -> None:
    """Rename `kept`, some of the `pushed_folders` in order, to folder, folder-1, ...; remove the others."""
    for found in pushed_folders(folder):
        if found not in kept:
            remove_folder(found)
    for age, found in enumerate(kept):
        name = folder.with_name(f"{folder.name}-{age}") if age else folder
        if found != name:
            found.rename(name)
    if folder.parent.is_dir():
        flush_entries(folder.parent)


def remove_folder(folder: Path) -> None:
    """Remove a folder if it exists. A kill leaves it as it was, or without this name."""
    aside = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(aside, ignore_errors=True)
    if folder.is_dir():
        folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def replace_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Replace the content of `folder` by `files`. After an error, it has its earlier content.

    File systems cannot replace a non-empty folder atomically. For an instant, the old folder therefore has
    another name; readers get the path from `existing_folder`.
    """
    old = backup_of(folder)
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
    old = backup_of(folder)
    return old if old.exists() and not folder.exists() else folder


def _written_beside(folder: Path, files: Mapping[str, bytes]) -> Path:
    new = folder.with_name(f".{folder.name}.new")
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


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


FORMAT = 2
FILES = MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
TENSORS = (MODEL, OPTIMIZER)
# state.json begins with this text. The digest covers all its bytes, with zeros instead of the digest.
_HEAD = '{\n "format": %d,\n "digest": "%s"'
_SIGNED = re.compile(rb'\{\n "format": 2,\n "digest": "([0-9a-f]{64})"')
_UNSIGNED = "0" * 64
_KINDS = {
    "format": int, "digest": str, "khop": str, "files": dict,
    "training": dict, "groups": list, "records": list,
}  # fmt: skip


def encoded(tensors: Mapping[str, bytes], state: Mapping[str, object]) -> dict[str, bytes]:
    """Encode a checkpoint as files by name: the tensor files, and state.json with digests of all files."""
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in tensors.items()}
    rest = json.dumps({"khop": khop.__version__, "files": digests, **state}, indent=1)
    body = "," + rest.removeprefix("{") + "\n"
    digest = hashlib.sha256((_HEAD % (FORMAT, _UNSIGNED) + body).encode()).hexdigest()
    return {**tensors, STATE: (_HEAD % (FORMAT, digest) + body).encode()}


def read_files(folder: Path) -> dict[str, bytes]:
    """Read the files of a checkpoint without checks; ValueError names a missing or unreadable file."""
    there = existing_folder(folder)
    if not there.is_dir():
        raise ValueError(f"{folder}: no checkpoint exists; train first, or give another run folder")
    return {name: _read(there / name) for name in FILES}


def read_state(folder: Path) -> dict[str, Any]:
    """Read only state.json of a checkpoint; ValueError if it is missing or damaged."""
    return _state(folder / STATE, _read(existing_folder(folder) / STATE))


def checked_state(folder: Path, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Check every byte of the files and return the content of state.json.

    ValueError names the damaged file in `folder`, or the format that this khop cannot read.
    """
    state = _state(folder / STATE, files[STATE])
    for name in TENSORS:
        if state["files"].get(name) != hashlib.sha256(files[name]).hexdigest():
            raise damaged(folder / name)
    return state


def damaged(path: Path) -> ValueError:
    """Error for a file with content that differs from the content that was written."""
    return ValueError(f"{path}: cut short or damaged; use another checkpoint, or train again")


def _state(path: Path, content: bytes) -> dict[str, Any]:
    signed = _SIGNED.match(content)
    if signed is not None:
        start, end = signed.span(1)
        unsigned = content[:start] + _UNSIGNED.encode() + content[end:]
        if hashlib.sha256(unsigned).hexdigest().encode() != signed[1]:
            raise damaged(path)
    try:
        state = json.loads(content)
    except (ValueError, RecursionError) as error:  # no JSON, or no UTF-8
        raise damaged(path) from error
    if not isinstance(state, dict) or not isinstance(state.get("format"), int):
        raise damaged(path)
    if state["format"] != FORMAT:
        reason = (
            f"format {state['format']}, but this version of khop reads format {FORMAT}; use the version that "
            f"wrote it"
        )
        raise ValueError(f"{path}: {reason}")
    if signed is None or not _is_whole(state):
        raise damaged(path)
    return state


def _is_whole(state: Mapping[str, Any]) -> bool:
    """Return True if state.json has exactly the expected entries."""
    return (
        state.keys() == _KINDS.keys()
        and all(isinstance(state[name], kind) for name, kind in _KINDS.items())
        and all(_is_group(group) for group in state["groups"])
        and all(isinstance(record, dict) for record in state["records"])
    )


def _is_group(group: object) -> bool:
    match group:
        case {"params": [*names]}:
            return all(isinstance(name, str) for name in names)
    return False


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise ValueError(f"{path}: missing from the checkpoint; use another checkpoint, or train again")
    try:
        return path.read_bytes()
    except OSError as error:
        reason = f"{path}: cannot be read ({error.strerror}); use another checkpoint, or train again"
        raise ValueError(reason) from error
