"""metrics.jsonl: one JSON object per epoch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

Record = Mapping[str, object]


class RunLog:
    """Appends records to a file and reads them back; a line that a killed writer left half does not count."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def records(self) -> list[Record]:
        """The whole lines, oldest first."""
        if not self.path.exists():
            return []
        lines = self.path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def append(self, record: Record) -> None:
        """Add one line; it is on disk when this returns. OSError where the disk does not take it."""
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            message = f"{error.strerror}: the epoch's line could not be written; the lines before are intact"
            raise OSError(error.errno, message, str(self.path)) from error

    def keep(self, count: int) -> None:
        """Drop all but the first `count` records, whole or not at all."""
        lines = [json.dumps(record) + "\n" for record in self.records()[:count]]
        beside = self.path.with_name(f".{self.path.name}.new")
        with beside.open("w") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
