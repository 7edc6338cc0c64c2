"""Memory for an import."""

from __future__ import annotations

from khop.datasets.importers import ImportContext
from khop.kernels.memory import free_memory_bytes


def memory_budget(context: ImportContext) -> int:
    """Return the budget of an import in bytes: as given, or half of what is free."""
    return free_memory_bytes() // 2 if context.memory is None else context.memory
