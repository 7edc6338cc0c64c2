"""metrics.jsonl and steps.jsonl: one JSON object per epoch, one per update."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

Record = Mapping[str, object]


class RunLog:
    """Appends records to a file and reads them back; a line that a killed writer left half does not count.

    Lines that the disk did not take are kept, and written with the next ones.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[str] = []

    def lines(self) -> list[bytes]:
        """The whole lines of the file, unchecked, oldest first."""
        if not self.path.exists():
            return []
        return self.path.read_bytes().split(b"\n")[:-1]

    def records(self) -> list[Record]:
        """The records of the file, oldest first; ValueError names a line that is damaged."""
        records = [_record(line) for line in self.lines()]
        for number, record in enumerate(records, 1):
            if record is None:
                raise ValueError(f"{self.path}: line {number} is damaged; put the file back, or train again")
        return [record for record in records if record is not None]

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

    def replace(self, records: Sequence[Record]) -> int:
        """Make these the file's lines, whole or not at all; return how many of them it did not hold."""
        lines = [json.dumps(record).encode() for record in records]
        there = self.lines()[: len(lines)]
        self._write(lines)
        return len(lines) - sum(line == found for line, found in zip(lines, there, strict=False))

    def keep(self, count: int, steps: int) -> int:
        """Keep the lines of the first `count` updates, `steps` an epoch; return how many were not there.

        All other lines are dropped, also those that are damaged.
        """
        kept: list[bytes] = []
        position = -1
        for line in self.lines():
            found = _position(line, steps)
            if found is not None and position < found < count:
                kept.append(line)
                position = found
        self._write(kept)
        return count - len(kept)

    def _write(self, lines: Sequence[bytes]) -> None:
        beside = self.path.with_name(f".{self.path.name}.new")
        with beside.open("wb") as file:
            file.writelines(line + b"\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)


def _record(line: bytes) -> Record | None:
    """The record of a line; None where the line holds none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # no JSON, or no UTF-8
        return None
    return record if isinstance(record, dict) else None


def _position(line: bytes, steps: int) -> int | None:
    """How many updates came before that of a line; None where the line is damaged."""
    record = _record(line) or {}
    epoch, step = record.get("epoch"), record.get("step")
    if not (isinstance(epoch, int) and isinstance(step, int) and 0 <= step < steps):
        return None
    return epoch * steps + step
