"""Stages of an import on disk, so that an import that was killed goes on where it stopped."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from khop.graph.atomic import flush_entries, raise_if_full, refuse_existing
from khop.graph.npy import flush

_FINGERPRINT, _LOCK = "fingerprint", "lock"


@dataclass(frozen=True)
class WorkFolder:
    """The folder of one import under way, beside the folder to write; one process at a time works in it."""

    path: Path
    out: Path

    @classmethod
    @contextmanager
    def open(cls, out: Path, fingerprint: str) -> Iterator[WorkFolder]:
        """Take up the import of the same input, or begin anew.

        After an error the folder is removed. It stays if the process is killed or interrupted by Ctrl-C.
        """
        refuse_existing(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        work = cls.at(out)
        work.path.mkdir(exist_ok=True)
        lock = _locked(work)
        try:
            known = work.path / _FINGERPRINT
            is_known = known.is_file() and known.read_text() == fingerprint
            if not is_known or not work.graph.is_dir():  # without it: killed after it got its name
                work._begin(fingerprint)
            yield work
        except Exception as error:
            shutil.rmtree(work.path, ignore_errors=True)
            raise_if_full(out, error)
            raise
        finally:
            os.close(lock)

    @classmethod
    def at(cls, out: Path) -> WorkFolder:
        """Return the folder of the import that writes `out`; it may not exist."""
        return cls(out.parent / f".{out.name}.importing", out)

    @property
    def graph(self) -> Path:
        """The graph folder under construction."""
        return self.path / "graph"

    @property
    def runs(self) -> Path:
        """The folder of files between stages."""
        return self.path / "runs"

    def has(self, name: str) -> bool:
        """Return True if a stage has ended."""
        return self._stage(name).is_file()

    def stage(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what an earlier process made, or make and keep it. Values are those of JSON.

        Files that `make` leaves must be on the disk when it returns.
        """
        path = self._stage(name)
        if path.is_file():
            done: dict[str, Any] = json.loads(path.read_text())
            return done
        content = json.dumps(make())
        unfinished = path.with_suffix(".new")
        with unfinished.open("wb") as file:
            file.write(content.encode())
            flush(file)
        unfinished.rename(path)
        flush_entries(path.parent)
        made: dict[str, Any] = json.loads(content)  # the same types as after a restart
        return made

    def _stage(self, name: str) -> Path:
        return self.path / "stages" / f"{name}.json"

    def publish(self) -> None:
        """Give the finished graph its name, and remove the rest."""
        for folder, _, _ in os.walk(self.graph):
            flush_entries(Path(folder))
        refuse_existing(self.out)
        self.graph.rename(self.out)
        flush_entries(self.out.parent)
        shutil.rmtree(self.path)

    def _begin(self, fingerprint: str) -> None:
        for there in self.path.iterdir():
            if there.is_dir():
                shutil.rmtree(there)
            elif there.name != _LOCK:
                there.unlink()
        for folder in (self.graph, self.runs, self.path / "stages"):
            folder.mkdir()
        (self.path / _FINGERPRINT).write_text(fingerprint)


def _locked(work: WorkFolder) -> int:
    lock = os.open(work.path / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ValueError(
            f"{work.out}: another process imports to it; wait for its end, or choose another name"
        ) from None
    return lock
