"""Warnings of the command."""

from __future__ import annotations

import sys


def warn(sentence: str) -> None:
    """Print a warning where errors go too."""
    print(f"khop: {sentence}", file=sys.stderr, flush=True)
