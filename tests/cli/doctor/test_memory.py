"""Memory, huge pages, and the allocator."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.doctor.support import by_name
from khop.cli.doctor.findings import FindingState
from khop.cli.doctor.memory import free_memory, memory


@pytest.mark.parametrize(
    ("mode", "state"),
    [
        ("always [madvise] never", FindingState.OK),
        ("[always] madvise never", FindingState.OK),
        ("always madvise [never]", FindingState.WRONG),
        (None, FindingState.NOTE),
    ],
)
def test_huge_pages_are_off_on_or_not_offered(tmp_path: Path, mode: str | None, state: FindingState) -> None:
    path = tmp_path / "enabled"
    if mode is not None:
        path.write_text(mode)
    finding = by_name(memory({}, path))["huge pages"]
    assert finding.state is state
    assert (finding.remedy == f"echo madvise | sudo tee {path}") == (state is FindingState.WRONG)


def test_little_memory_and_a_foreign_allocator_are_named(tmp_path: Path) -> None:
    assert [free_memory(free).state for free in (1 << 30, 8 << 30)] == [FindingState.WRONG, FindingState.OK]
    found = by_name(memory({"LD_PRELOAD": "/lib/jemalloc.so"}, tmp_path))["allocator"]
    assert (found.state, found.remedy) == (FindingState.NOTE, "unset LD_PRELOAD")
