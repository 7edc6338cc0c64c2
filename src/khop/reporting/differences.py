"""Differences between values of several runs, such as their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def differences(tables: Sequence[Mapping[str, object]]) -> dict[str, tuple[object, ...]]:
    """Return by dotted path the values that differ between tables; None where a table lacks one."""
    flat = [dict(flattened(table)) for table in tables]
    paths = dict.fromkeys(path for table in flat for path in table)
    rows = {path: tuple(table.get(path) for table in flat) for path in paths}
    return {path: row for path, row in rows.items() if any(value != row[0] for value in row)}


def flattened(table: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """List the values of nested tables by dotted path."""
    found: list[tuple[str, object]] = []
    for name, value in table.items():
        match value:
            case Mapping():
                found += flattened(value, f"{prefix}{name}.")
            case _:
                found.append((prefix + name, value))
    return found
