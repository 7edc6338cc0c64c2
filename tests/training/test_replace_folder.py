"""A folder is replaced whole or not at all, whenever its writer dies.

Files of a checkpoint: every flipped bit is found, and the damaged file is named.
"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from khop.training.replace_folder import (
    FILES,
    STATE,
    checked_state,
    encoded,
    existing_folder,
    read_files,
    replace_folder,
)

OLD = {"a": b"old a", "b": b"old b", "c": b"old c"}
NEW = {"a": b"new a" * 10, "b": b"new b" * 10}

# A writer that SIGKILLs itself right before its n-th operation on the file system.
WRITER = """
import os, signal, sys
from pathlib import Path
from khop.training.replace_folder import replace_folder

folder, deadline = Path(sys.argv[1]), int(sys.argv[2])
operations = 0

def watch(event, arguments):
    global operations
    if event in {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir"}:
        operations += 1
        if operations == deadline:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
replace_folder(folder, {"a": b"new a" * 10, "b": b"new b" * 10})
"""


def held(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in existing_folder(folder).iterdir()}


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """What a full disk is to a writer: an error in the middle of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_folder_holds_exactly_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "last"
    for files in (OLD, NEW, {}):
        replace_folder(folder, files)
        assert held(folder) == files
        assert list(folder.parent.iterdir()) == [folder]


def test_a_writer_killed_at_any_moment_leaves_the_old_or_the_new_one(tmp_path: Path) -> None:
    outcomes = []
    for deadline in range(1, 100):
        folder = tmp_path / str(deadline) / "last"
        replace_folder(folder, OLD)
        command = [sys.executable, "-c", WRITER, str(folder), str(deadline)]
        code = subprocess.run(command, check=False).returncode
        assert held(folder) in (OLD, NEW)
        outcomes.append(held(folder))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        replace_folder(folder, {"c": b"next"})  # what a dead writer left is in nobody's way
        assert held(folder) == {"c": b"next"}
        assert list(folder.parent.iterdir()) == [folder]
    assert code == 0
    assert len(outcomes) > 10
    assert outcomes == sorted(outcomes, key=lambda files: files == NEW)


def test_the_old_one_counts_while_the_new_one_is_not_in_its_place(tmp_path: Path) -> None:
    folder = tmp_path / "last"
    replace_folder(folder, OLD)
    folder.rename(tmp_path / ".last.old")
    assert held(folder) == OLD
    replace_folder(folder, NEW)
    assert held(folder) == NEW


@pytest.mark.parametrize("limit", [0, 3, 49])
def test_a_disk_that_is_full_leaves_the_old_one(tmp_path: Path, limit: int) -> None:
    folder = tmp_path / "last"
    replace_folder(folder, OLD)
    with file_size_limit(limit), pytest.raises(OSError, match="File too large"):
        replace_folder(folder, NEW)
    assert held(folder) == OLD
    assert list(tmp_path.iterdir()) == [folder]


TENSORS = {"model.safetensors": b"weights", "optimizer.safetensors": b"moments"}
CONTENT = {"training": {"epoch": 3}, "groups": [{"params": ["a", "b"], "lr": 0.1}], "records": [{"loss": 1}]}


def written(folder: Path) -> dict[str, bytes]:
    for name, content in encoded(TENSORS, CONTENT).items():
        (folder / name).write_bytes(content)
    return read_files(folder)


def test_state_comes_back_as_it_was_encoded(tmp_path: Path) -> None:
    files = written(tmp_path)
    assert tuple(files) == FILES
    state = checked_state(tmp_path, files)
    assert {name: state[name] for name in CONTENT} == CONTENT


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_anywhere_is_found(tmp_path: Path, name: str) -> None:
    files = written(tmp_path)
    for at in range(len(files[name])):
        content = bytearray(files[name])
        content[at] ^= 1 << at % 8
        with pytest.raises(ValueError, match=rf"{name}: (cut short or damaged|format)"):
            checked_state(tmp_path, files | {name: bytes(content)})


@pytest.mark.parametrize("state", [b"", b"[]", b"{}", b'{"format": 2}', b"[" * 100_000, b"\xff"])
def test_other_content_is_damage(tmp_path: Path, state: bytes) -> None:
    with pytest.raises(ValueError, match=r"state\.json: cut short or damaged"):
        checked_state(tmp_path, {**TENSORS, STATE: state})


def test_a_later_format_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="format 9, this khop reads format 2"):
        checked_state(tmp_path, {**TENSORS, STATE: b'{"format": 9}'})
    with pytest.raises(ValueError, match="no checkpoint there"):
        read_files(tmp_path / "nowhere")
    written(tmp_path)
    (tmp_path / STATE).unlink()
    with pytest.raises(ValueError, match=r"state\.json: missing from the checkpoint"):
        read_files(tmp_path)
