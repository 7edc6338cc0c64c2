"""Names and cache folders of the graphs included in khop."""

from __future__ import annotations

from pathlib import Path

BUILTIN_NAMES = ("debian", "debian-typed")
SNAPSHOT_SHA256 = "0e66b2ccb1df183381ca4f6ac3a291b958917d57f44fc5904a9a4c405d74da38"
_RECIPE = 1  # raise it when a snapshot becomes another graph, so that old folders in caches are not used


def builtin_path(name: str, cache: Path) -> Path:
    """Return the folder of a built-in graph in `cache`, unpacked or not."""
    return cache / f"{name}-{SNAPSHOT_SHA256[:8]}.{_RECIPE}"


def graph_name(folder: Path) -> str:
    """Return the name of the graph of a folder: that of the folder, or of the built-in graph in a cache."""
    return next((name for name in BUILTIN_NAMES if folder == builtin_path(name, folder.parent)), folder.name)
