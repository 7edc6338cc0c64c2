"""metrics.jsonl holds one whole line per epoch."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from khop.training.run_log import RunLog


def test_records_come_back_in_order(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "metrics.jsonl")
    assert log.records() == []
    records = [{"epoch": epoch, "loss": 1 / (epoch + 3), "name": "é"} for epoch in range(3)]
    for record in records:
        log.append(record)
    assert log.records() == records
    assert log.path.read_text().count("\n") == 3


def test_a_disk_that_is_full_keeps_the_lines_before(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "metrics.jsonl")
    log.append({"epoch": 0})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
    try:
        with pytest.raises(OSError, match=r"File too large: lines could not be written.*metrics\.jsonl"):
            log.append({"epoch": 1})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert log.records() == [{"epoch": 0}]
    log.append({"epoch": 2})
    assert log.records() == [{"epoch": 0}, {"epoch": 1}, {"epoch": 2}]


def test_lines_that_are_held_come_with_the_next_flush(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "steps.jsonl")
    log.hold({"step": 0})
    assert log.records() == []
    log.append({"step": 1})
    assert log.records() == [{"step": 0}, {"step": 1}]


def test_a_half_written_line_does_not_count_and_goes_with_the_next_cut(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "metrics.jsonl")
    for epoch in range(3):
        log.append({"epoch": epoch})
    with log.path.open("a") as file:
        file.write('{"epoch": 3, "lo')
    assert [record["epoch"] for record in log.records()] == [0, 1, 2]
    log.keep(2)
    log.append({"epoch": 2, "again": True})
    assert log.records() == [{"epoch": 0}, {"epoch": 1}, {"epoch": 2, "again": True}]
    assert list(tmp_path.iterdir()) == [log.path]
