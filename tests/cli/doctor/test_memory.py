"""Memory, huge pages, and the allocator."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.doctor.support import by_name
from khop.cli.doctor.findings import State
from khop.cli.doctor.memory import free_memory, memory


@pytest.mark.parametrize(
    ("mode", "state"),
    [
        ("always [madvise] never", State.OK),
        ("[always] madvise never", State.OK),
        ("always madvise [never]", State.WRONG),
        (None, State.NOTE),
    ],
)
def test_huge_pages_are_off_on_or_not_offered(tmp_path: Path, mode: str | None, state: State) -> None:
    path = tmp_path / "enabled"
    if mode is not None:
        path.write_text(mode)
    finding = by_name(memory({}, path))["huge pages"]
    assert finding.state is state
    assert (finding.remedy == f"echo madvise | sudo tee {path}") == (state is State.WRONG)


def test_little_memory_and_a_foreign_allocator_are_named(tmp_path: Path) -> None:
    assert [free_memory(free).state for free in (1 << 30, 8 << 30)] == [State.WRONG, State.OK]
    found = by_name(memory({"LD_PRELOAD": "/lib/jemalloc.so"}, tmp_path))["allocator"]
    assert (found.state, found.remedy) == (State.NOTE, "unset LD_PRELOAD")
