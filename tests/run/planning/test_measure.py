"""Constants are measured where `khop plan --measure` is called."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from khop.run.planning.measure import measured


@pytest.mark.long
def test_every_constant_comes_from_work_that_was_done() -> None:
    found = asdict(measured(nodes=15_000, disk_bytes=1 << 23))
    assert all(value > 0 for value in found.values())
    assert 0.1 < found["sample_ns"] < 1e5
