"""Logs and checkpoints of a run: when one is due, and what a full disk leaves for later."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop.training.checkpoint import Snapshot
from khop.training.checkpoint_writer import LAST, CheckpointWriter
from khop.training.settings import CheckpointPolicy

SNAPSHOT = Snapshot({"w": torch.ones(2)}, {}, [{"params": ["w"]}], {"epoch": 1}, [])


def test_a_checkpoint_is_due_after_its_steps(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, CheckpointPolicy(steps=2, minutes=None), print)
    writer.begin([], 0, 5, None)
    due = []
    for step in range(2):
        due.append(writer.is_due())
        writer.log_step({"step": step})
    assert [*due, writer.is_due()] == [False, False, True]
    writer.save({LAST: SNAPSHOT})
    writer.close()
    assert not writer.is_due()
    assert (tmp_path / "steps.jsonl").read_text().count("\n") == 2
    assert (tmp_path / "checkpoints" / LAST).is_dir()


def test_what_a_disk_does_not_take_is_written_with_the_next_checkpoint(tmp_path: Path) -> None:
    warned: list[str] = []
    writer = CheckpointWriter(tmp_path, CheckpointPolicy(), warned.append)
    writer.begin([], 0, 5, None)
    (tmp_path / "checkpoints").write_text("a file where the folder has to be")
    writer.save({LAST: SNAPSHOT})
    writer.save({})
    assert len(warned) == 1
    assert warned[0].endswith("; the run continues")
    with pytest.raises(OSError, match="checkpoints"):
        writer.close()
    (tmp_path / "checkpoints").unlink()
    writer.close()
    assert (tmp_path / "checkpoints" / LAST).is_dir()


def test_lost_lines_are_restored_and_reported(tmp_path: Path) -> None:
    warned: list[str] = []
    writer = CheckpointWriter(tmp_path, CheckpointPolicy(), warned.append)
    writer.begin([{"epoch": 0, "loss": 1.0}], 3, 3, None)
    assert '"loss": 1.0' in (tmp_path / "metrics.jsonl").read_text()
    assert [line.split(":")[0] for line in warned] == [
        str(tmp_path / f"{n}.jsonl") for n in ("metrics", "steps")
    ]
