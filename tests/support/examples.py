"""How many examples a property of slow steps is tried on."""

from __future__ import annotations

from hypothesis import settings


def few(examples: int) -> int:
    """Return `examples`, or eight times as many in `make test-all`."""
    return examples if settings().max_examples < 100 else 8 * examples
