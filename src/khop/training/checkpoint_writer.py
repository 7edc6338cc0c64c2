"""Output of a training run: two logs, and checkpoints written in a background thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from khop.training.checkpoint import Snapshot
from khop.training.replace_folder import make_youngest
from khop.training.run_log import Record, RunLog
from khop.training.settings import CheckpointPolicy

BEST, LAST = "best", "last"
FLUSH_S = 2.0  # longest time that lines of steps stay in memory


class CheckpointWriter:
    """Writer of a run's logs and checkpoints.

    A thread writes the checkpoints, one at a time. If a write fails, the writer reports it to `warn` and
    tries again with the next checkpoint. `close` raises if data are still unwritten then.
    """

    def __init__(self, out: Path, policy: CheckpointPolicy, warn: Callable[[str], None]) -> None:
        self.epochs = RunLog(out / "metrics.jsonl")
        self.steps = RunLog(out / "steps.jsonl")
        self.folder = out / "checkpoints"
        self._policy = policy
        self._warn = warn
        self._unwritten: dict[str, Snapshot] = {}
        self._writer: threading.Thread | None = None
        self._problem: OSError | None = None
        self._steps_since = 0
        self._saved_at = self._flushed_at = time.monotonic()

    def log_step(self, record: Record) -> None:
        """Add a line to steps.jsonl; it reaches the disk with the next flush."""
        self.steps.hold(record)
        self._steps_since += 1
        if time.monotonic() - self._flushed_at > FLUSH_S:
            self._flush()

    def log_epoch(self, record: Record) -> None:
        """Add a line to metrics.jsonl, and flush both logs."""
        self.epochs.hold(record)
        self._flush()

    def is_due(self) -> bool:
        """Return True if a checkpoint within the epoch is due and the previous one is written."""
        policy = self._policy
        by_steps = policy.steps is not None and self._steps_since >= policy.steps
        elapsed = time.monotonic() - self._saved_at
        by_clock = policy.minutes is not None and elapsed >= 60 * policy.minutes
        is_writing = self._writer is not None and self._writer.is_alive()
        return (by_steps or by_clock) and not is_writing

    def save(self, snapshots: dict[str, Snapshot]) -> None:
        """Write checkpoints by name in the background, after earlier checkpoints and after the logs."""
        self._wait()
        self._unwritten.update(snapshots)
        self._steps_since, self._saved_at = 0, time.monotonic()
        # Flush the logs first: resume drops surplus lines, but cannot recreate missing ones.
        if self._flush():
            self._writer = threading.Thread(target=self._write, name="khop-checkpoint")
            self._writer.start()

    def close(self) -> None:
        """Write all remaining data to disk; OSError if the disk still does not accept it."""
        self._wait()
        self.epochs.flush()
        self.steps.flush()
        if self._unwritten:
            self._write()
        if self._problem is not None:
            raise self._problem

    def begin(self, records: Sequence[Record], updates: int, steps: int, source: Path | None) -> None:
        """Set the logs to the state of a run after `updates` updates, with `steps` updates per epoch.

        `source` is the checkpoint from which the run resumes. Newer checkpoints are damaged; they are moved
        aside.
        """
        self.epochs.path.parent.mkdir(parents=True, exist_ok=True)
        if source is not None:
            make_youngest(self.folder / LAST, source)
        if absent := self.epochs.replace(records):
            self._warn(f"{self.epochs.path}: {absent} lines were damaged or lost; the checkpoint has them")
        if absent := self.steps.keep(updates, steps):
            self._warn(f"{self.steps.path}: {absent} of {updates} lines are damaged or lost, and left out")

    def _write(self) -> None:
        self._problem = None
        for name, snapshot in list(self._unwritten.items()):
            try:
                if name == LAST:
                    snapshot.write(self.folder / LAST, self._policy.keep)
                else:
                    place = name.removeprefix(BEST).removeprefix("-")
                    snapshot.write(self.folder / BEST, self._policy.best, int(place or 0))
                del self._unwritten[name]
            except OSError as error:
                self._problem = error

    def _wait(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None
            if self._problem is not None:
                self._warn(f"{_sentence(self._problem)}; the run continues")

    def _flush(self) -> bool:
        """Flush the logs to disk; return True on success."""
        self._flushed_at = time.monotonic()
        try:
            self.epochs.flush()
            self.steps.flush()
        except OSError as error:
            self._warn(f"{_sentence(error)}; the run continues")
            return False
        return True


def _sentence(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}"
