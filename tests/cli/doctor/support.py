"""Findings by name."""

from __future__ import annotations

from collections.abc import Iterable

from khop.cli.doctor.findings import Finding


def by_name(found: Iterable[Finding]) -> dict[str, Finding]:
    """Return findings by their names."""
    return {each.name: each for each in found}
