"""Where built-in graphs are unpacked."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$KHOP_CACHE, else khop's place in the user's cache."""
    named = os.environ.get("KHOP_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "khop"
