"""Kernels have the bits of the CPU core under the oldest and the newest Triton too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.long
@pytest.mark.parametrize("requirement", ["triton==3.3.1", "triton"], ids=["oldest", "newest"])
def test_other_versions_of_triton_give_the_same_bits(requirement: str, tmp_path: Path) -> None:
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        tmp_path,
        requirement,
    ]
    subprocess.run(install, check=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE]
    done = subprocess.run(
        [*command, f"--deselect={HERE / 'test_compilation.py'}"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
