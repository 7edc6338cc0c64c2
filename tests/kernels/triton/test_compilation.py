"""Every kernel compiles ahead of time without a GPU, within the limits of scripts/compile-kernels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "compile-kernels"


def compiled(*targets: str) -> None:
    done = subprocess.run([sys.executable, SCRIPT, *targets], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_kernel_compiles_for_one_target_within_the_limits() -> None:
    compiled("sm_90", "--first")


@pytest.mark.long
@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_every_kernel_compiles_for_other_targets_within_the_limits(target: str) -> None:
    """`make test-all PARTS=machines` compiles all variants."""
    compiled(target, "--first")
