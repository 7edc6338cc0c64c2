"""The user's cache folder, where built-in graphs are unpacked.

With the command and `khop.launch` the only place that reads the environment.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$KHOP_CACHE, else khop in $XDG_CACHE_HOME, else khop in ~/.cache."""
    named = os.environ.get("KHOP_CACHE")
    if named:
        return Path(named)
    # The specification of XDG_CACHE_HOME has relative paths ignored.
    shared = Path(os.environ.get("XDG_CACHE_HOME") or "")
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "khop"
