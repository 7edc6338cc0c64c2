"""Logs metrics.jsonl and steps.jsonl: one JSON object per epoch, and one per optimizer step or evaluation."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path

Record = Mapping[str, object]
EPOCHS = "epochs"  # in records of evaluations within an epoch, and of an epoch that ended early


class RunLog:
    """Log file of records; an incomplete line left by a killed writer is ignored.

    Lines that could not be written are kept in memory, and written with later ones.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[str] = []

    def lines(self) -> list[bytes]:
        """Read the complete lines of the file without checks, oldest first."""
        if not self.path.exists():
            return []
        return self.path.read_bytes().split(b"\n")[:-1]

    def records(self) -> list[Record]:
        """Read the records of the file, oldest first; ValueError names a damaged line."""
        records = [_record(line) for line in self.lines()]
        for number, record in enumerate(records, 1):
            if record is None:
                raise ValueError(f"{self.path}: line {number} is damaged; restore the file, or train again")
        return [record for record in records if record is not None]

    def append(self, record: Record) -> None:
        """Add one line and write it to disk. OSError if the write fails."""
        self.hold(record)
        self.flush()

    def hold(self, record: Record) -> None:
        """Add one line, kept in memory until the next `flush`."""
        self._waiting.append(json.dumps(record) + "\n")

    def flush(self) -> None:
        """Write all lines to disk, all or none. OSError if the write fails."""
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
            message = f"{error.strerror}: lines could not be written; earlier lines are intact"
            raise OSError(error.errno, message, str(self.path)) from error
        self._waiting.clear()

    def replace(self, records: Sequence[Record]) -> int:
        """Replace the file's lines by `records` atomically; return how many of them the file lacked."""
        lines = [json.dumps(record).encode() for record in records]
        there = self.lines()[: len(lines)]
        self._write(lines)
        return len(lines) - sum(line == found for line, found in zip(lines, there, strict=False))

    def keep(self, count: int, steps: int, evaluations: Iterable[Record] = ()) -> int:
        """Keep the lines of the first `count` updates, with `steps` per epoch; return how many were missing.

        The lines of `evaluations` follow those of their updates. All others are dropped, damaged ones
        included.
        """
        kept: list[tuple[int, bytes]] = []
        position = -1
        for line in self.lines():
            record = _record(line) or {}
            found = None if EPOCHS in record else _position(record, steps)
            if found is not None and position < found < count:
                kept.append((found, line))
                position = found
        missing = count - len(kept)
        kept += [(_position(one, steps) or 0, json.dumps(one).encode()) for one in evaluations]
        self._write([line for _, line in sorted(kept, key=itemgetter(0))])
        return missing

    def _write(self, lines: Sequence[bytes]) -> None:
        beside = self.path.with_name(f".{self.path.name}.new")
        with beside.open("wb") as file:
            file.writelines(line + b"\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)


def _record(line: bytes) -> Record | None:
    """Parse the record of a line; None if the line is damaged."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # no JSON, or no UTF-8
        return None
    return record if isinstance(record, dict) else None


def _position(record: Record, steps: int) -> int | None:
    """Number of updates before that of a line; None if the line is damaged."""
    epoch, step = record.get("epoch"), record.get("step")
    if not (isinstance(epoch, int) and isinstance(step, int) and 0 <= step < steps):
        return None
    return epoch * steps + step
