"""The budget is the given one, or half of what is free."""

from __future__ import annotations

from pathlib import Path

from khop.data.formats.set_graph import memory_budget
from khop.data.importers import ImportContext
from khop.kernels.memory import free_memory_bytes


def test_a_given_budget_counts() -> None:
    assert memory_budget(ImportContext(Path(), 5)) == 5
    assert 0 < memory_budget(ImportContext(Path())) < free_memory_bytes()
