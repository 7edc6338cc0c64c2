"""The user's cache folder, which stores built-in graphs, downloads and measurements.

Apart from the command and `khop.launch`, only this module reads the environment.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return $KHOP_CACHE, else khop in $XDG_CACHE_HOME, else khop in ~/.cache."""
    named = os.environ.get("KHOP_CACHE")
    if named:
        return Path(named)
    # The XDG specification requires that relative paths are ignored.
    shared = Path(os.environ.get("XDG_CACHE_HOME") or "")
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "khop"
