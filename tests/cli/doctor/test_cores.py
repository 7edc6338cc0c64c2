"""Cores that this process may use, and threads that wait."""

from __future__ import annotations

from pathlib import Path

from cli.doctor.support import by_name
from khop.cli.doctor.findings import FindingState, cores


def test_cores_are_limited_by_a_quota_and_taken_by_other_programs(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text("100000 100000")
    found = by_name(cores({}, quota, load=1000.0))
    assert found["usable cores"].found.startswith("1 (")
    assert found["load"].state is FindingState.WRONG
    assert by_name(cores({}, quota, load=0.5))["load"].state is FindingState.OK


def test_openmp_that_spins_or_has_too_many_threads_is_named(tmp_path: Path) -> None:
    found = by_name(cores({"OMP_WAIT_POLICY": "ACTIVE", "OMP_NUM_THREADS": "4096"}, tmp_path / "none", 0.0))
    assert (found["OpenMP waiting"].state, found["OpenMP waiting"].remedy) == (
        FindingState.WRONG, "unset OMP_WAIT_POLICY",
    )  # fmt: skip
    assert found["OpenMP threads"].state is FindingState.WRONG
    found = by_name(cores({"OMP_WAIT_POLICY": "passive"}, tmp_path / "none", 0.0))
    assert found["OpenMP waiting"].state is FindingState.OK
    assert "OpenMP threads" not in found
