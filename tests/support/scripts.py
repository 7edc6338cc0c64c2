"""Short scripts, each in a process of its own."""

from __future__ import annotations

import subprocess
import textwrap

from support.commands import PROGRAM


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    """Run an indented script in a new interpreter and wait for its end."""
    return subprocess.run(
        [*PROGRAM, textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
