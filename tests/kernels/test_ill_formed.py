"""The core refuses arrays that do not fit one another: it never follows them out of memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_every_function_of_the_core_refuses_ill_formed_arrays() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kernels.ill_formed"], cwd=TESTS, capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().splitlines()[-3:]
    assert done.returncode == 0, f"exit {done.returncode} in {last}"
    found = json.loads(done.stdout)
    assert not found["unknown"], "add these to tests/kernels/ill_formed.py, with arrays that they must refuse"
    assert found == {"wrong": [], "unknown": [], "gone": []}
