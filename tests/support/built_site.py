"""The documentation site, built as `make docs` builds it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build_site(out: Path) -> Path:
    """Build the site in a folder. A warning, such as a link that leads nowhere, fails the test."""
    command = [sys.executable, "scripts/build_docs.py", "--out", str(out)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return out
