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
    assert log.replace([{"epoch": 0}, {"epoch": 1}]) == 0
    log.append({"epoch": 2, "again": True})
    assert log.records() == [{"epoch": 0}, {"epoch": 1}, {"epoch": 2, "again": True}]
    assert list(tmp_path.iterdir()) == [log.path]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "metrics.jsonl")
    log.path.write_bytes(b'{"epoch": 0}\n{"epoch"\xba 1}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl: line 2 is damaged; restore the file"):
        log.records()


def test_lines_that_differ_are_replaced_and_counted(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "metrics.jsonl")
    log.path.write_bytes(b'{"epoch": 0}\n{"epoch": 7}\n{"epoch": 2}\n')
    assert log.replace([{"epoch": 0}, {"epoch": 1}]) == 1
    assert log.path.read_bytes() == b'{"epoch": 0}\n{"epoch": 1}\n'
    assert log.replace([]) == 0
    assert log.path.read_bytes() == b""


def test_of_damaged_lines_of_steps_the_whole_ones_are_kept(tmp_path: Path) -> None:
    """Two steps an epoch, five updates; lines 2 and 4 are damaged, and a newline is lost."""
    log = RunLog(tmp_path / "steps.jsonl")
    lines = [b'{"epoch": %d, "step": %d}' % divmod(update, 2) for update in range(6)]
    damaged = [lines[0], b'{"epoch": 0, "step"z 1}', lines[2], b'{"epoch": 9, "step": 1}']
    log.path.write_bytes(b"\n".join([*damaged, lines[4] + lines[5], b""]))
    assert log.keep(5, 2) == 3
    assert log.records() == [{"epoch": 0, "step": 0}, {"epoch": 1, "step": 0}]
