"""The package lists of a machine: their folder, and their lines from plain or compressed files."""

from __future__ import annotations

import gzip
import re
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

_LIST = re.compile(r"(.*_)?Packages(\.(gz|xz|bz2|lzma|lz4|zst))?")
_LISTS_OF_APT = ("apt-config", "shell", "LISTS", "Dir::State::lists/d")
_APT_HELPER = "/usr/lib/apt/apt-helper"
_TIMEOUT_S = 30
_INSTEAD = "name a folder with the *_Packages files of a Debian or Ubuntu machine (--lists DIR)"


def machine_lists() -> Path:
    """Return the folder of apt's package lists on this machine, as configured in apt."""
    command = " ".join(_LISTS_OF_APT)
    try:
        answer = subprocess.run(_LISTS_OF_APT, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except FileNotFoundError as error:
        raise ValueError(f"there is no apt on this machine (no {_LISTS_OF_APT[0]}); {_INSTEAD}") from error
    except subprocess.CalledProcessError as error:
        raise ValueError(f"`{command}` failed: {error.stderr.strip()}; {_INSTEAD}") from error
    found = re.fullmatch(r"LISTS='(.+)'", answer.stdout.strip())
    if not found:
        raise ValueError(f"`{command}` says {answer.stdout.strip()!r}, which names no folder; {_INSTEAD}")
    return Path(found.group(1))


def find_lists(folder: Path) -> list[Path]:
    """Return the package lists in a folder, ordered by name; at least one."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; {_INSTEAD}")
    lists = sorted(path for path in folder.iterdir() if _LIST.fullmatch(path.name) and path.is_file())
    if not lists:
        raise ValueError(
            f"{folder}: holds no package lists (*_Packages); run `apt-get update`, or {_INSTEAD}"
        )
    return lists


def list_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a package list, decompressed while reading: all lines, or an error."""
    if path.suffix == ".gz":
        yield from _unzipped_lines(path)
    elif path.suffix:
        yield from _lines_by_apt(path)
    else:
        with path.open(encoding="utf-8", errors="replace") as lines:
            yield from lines


def _unzipped_lines(path: Path) -> Iterator[str]:
    try:
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as lines:
            yield from lines
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path}: damaged ({error}); run `apt-get update` again, or copy it again"
        ) from error


def _lines_by_apt(path: Path) -> Iterator[str]:
    command = (_APT_HELPER, "cat-file", str(path))
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", errors="replace"
        )
    except FileNotFoundError as error:
        raise ValueError(
            f"{path}: only apt reads {path.suffix} and there is no {_APT_HELPER}; decompress it"
        ) from error
    # Leaving the block early closes the pipe, and this ends the helper process.
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        yield from process.stdout
        complaint = process.stderr.read().strip()
    if process.returncode:
        raise ValueError(
            f"{path}: apt cannot read it ({complaint}); run `apt-get update` again, or copy it again"
        )
