"""Files and folders written atomically, with progress, checks of disk space, and tasks on threads."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TypeVar

UNFINISHED = ".unfinished"
_LOCK = "writer.lock"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def refuse_existing(path: Path) -> None:
    """Raise ValueError if `new_folder` would refuse the path.

    Call this before long work, so that its result is not lost.
    """
    refuse_dangling(path)
    if path.is_symlink():
        raise ValueError(
            f"{path}: is a symbolic link, and the rename of the finished folder does not follow links; "
            f"name the folder that it leads to, {path.resolve()}, or remove the link"
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path}: exists already; remove it or choose another name")


def refuse_dangling(path: Path) -> None:
    """Raise ValueError if an output path, or a folder above it, is a dangling symbolic link."""
    for link in (path, *path.parents):
        if link.is_symlink() and not link.exists():
            raise ValueError(
                f"{path}: {link} is a symbolic link to {os.readlink(link)}, which does not exist; remove the "
                "link, or choose another name"
            )


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Create a hidden sibling folder to write into; rename it to `path` on success, remove it on failure.

    If a writer is killed, only the hidden folder remains. The next writer of `path` removes it. Callers flush
    the files that they write; this function flushes the directory entries.
    """
    refuse_existing(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path)
    hidden = path.parent / f".{path.name}.{uuid.uuid4().hex[:12]}{UNFINISHED}"
    try:
        hidden.mkdir()
        lock = _hold(hidden)
        try:
            yield hidden
            _publish(hidden, path)
        finally:
            os.close(lock)
    except BaseException as error:
        shutil.rmtree(hidden, ignore_errors=True)
        raise_if_full(path, error)
        raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file name to an OSError of the block without one; write errors have none."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def raise_if_full(path: Path, error: BaseException) -> None:
    """Raise OSError that names the file and the remedy if a full disk prevented writing a folder."""
    is_inner = isinstance(error.__cause__, OSError)  # of a folder written within the block: named already
    if isinstance(error, OSError) and error.errno in _FULL and not is_inner:
        file = f"the file {Path(error.filename).name}" if error.filename else "the folder"
        reason = f"{path}: no space for {file} ({os.strerror(error.errno)}); nothing was left behind"
        raise OSError(error.errno, f"{reason}. Free some space or write to another disk") from error


def _hold(hidden: Path) -> int:
    # Locked before the rename. If another process can take the lock, the writer is dead.
    unnamed = hidden / f"{_LOCK}.new"
    lock = os.open(unnamed, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    unnamed.rename(hidden / _LOCK)
    return lock


def _publish(hidden: Path, path: Path) -> None:
    (hidden / _LOCK).unlink()
    for folder, _, _ in os.walk(hidden):
        flush_entries(Path(folder))
    try:
        hidden.rename(path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise ValueError(
                f"{path}: was written by another process at the same time; this result is discarded"
            ) from error
        raise
    flush_entries(path.parent)


def backup_of(folder: Path) -> Path:
    """Return the name of a folder's content while `replace_folder` renames the new one."""
    return folder.with_name(f".{folder.name}.old")


def flush_entries(folder: Path) -> None:
    """Flush the directory entries of a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_abandoned(path: Path) -> None:
    for hidden in path.parent.iterdir():
        if not (hidden.name.startswith(f".{path.name}.") and hidden.name.endswith(UNFINISHED)):
            continue
        try:
            lock = os.open(hidden / _LOCK, os.O_RDWR)
        except FileNotFoundError:
            continue  # the folder was created just now, or was just published
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(hidden, ignore_errors=True)
        except BlockingIOError:
            continue  # another process writes the same folder; the last to publish finds `path` and fails
        finally:
            os.close(lock)


ProgressCallback = Callable[[str, int, int], None]  # (current item, bytes done, bytes in all)


def in_bytes(size: float) -> str:
    """Format a size for people: 12.3 GB; sizes below 0.1 GB in MB."""
    for unit, one in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= one:
            return f"{size / one:.3g} {unit}" if size < 999.5 * one else f"{size / one:,.0f} {unit}"
    return f"{size:.0f} bytes"


@dataclass
class Meter:
    """Byte counter of several threads; it reports to a callback, never more than the total: an estimate."""

    total: int
    notice: ProgressCallback | None = None
    done: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def at(self, what: str, more: int = 0) -> None:
        """Add `more` bytes and report `what` as the current item."""
        with self._lock:
            self.done += more
            if self.notice is not None:
                self.notice(what, min(self.done, self.total), self.total)


_SPARE = 1.02  # for headers and metadata of file systems


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


T = TypeVar("T")


def in_order(tasks: Iterable[Callable[[], T]], threads: int) -> Iterator[T]:
    """Yield the result of each task in order, with up to `threads` running and as many results waiting.

    The error of the first failed task is raised after all running tasks have ended.
    """
    if threads <= 1:
        for task in tasks:
            yield task()
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[T]] = deque()
        try:
            for task in tasks:
                waiting.append(pool.submit(task))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
