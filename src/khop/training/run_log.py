"""metrics.jsonl and steps.jsonl: one JSON object per epoch, one per update."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

Record = Mapping[str, object]


class RunLog:
    """Appends records to a file and reads them back; a line that a killed writer left half does not count.

    Lines that the disk did not take are kept, and written with the next ones.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[str] = []

    def records(self) -> list[Record]:
        """The whole lines of the file, oldest first."""
        if not self.path.exists():
            return []
        lines = self.path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def append(self, record: Record) -> None:
        """Add one line; it is on disk when this returns. OSError where the disk does not take it."""
        self.hold(record)
        self.flush()

    def hold(self, record: Record) -> None:
        """Add one line, in memory until the next `flush`."""
        self._waiting.append(json.dumps(record) + "\n")

    def flush(self) -> None:
        """Bring every line to the disk, all or none. OSError where it does not take them."""
        if not self._waiting:
            return
        size = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("a") as file:
                file.writelines(self._waiting)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            if self.path.exists():
                os.truncate(self.path, size)
            message = f"{error.strerror}: lines could not be written; the lines before are intact"
            raise OSError(error.errno, message, str(self.path)) from error
        self._waiting.clear()

    def keep(self, count: int) -> None:
        """Drop all but the first `count` records, whole or not at all."""
        lines = [json.dumps(record) + "\n" for record in self.records()[:count]]
        beside = self.path.with_name(f".{self.path.name}.new")
        with beside.open("w") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
