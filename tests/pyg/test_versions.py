"""The oldest torch_geometric that khop.pyg takes keeps every promise that the newest does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
OLDEST = "2.7.0"  # of the extra `pyg` in pyproject.toml
OWN_WARNING = "ignore:`torch_geometric.distributed` has been deprecated:DeprecationWarning"  # at its import


@pytest.mark.long
def test_every_promise_holds_with_the_oldest_torch_geometric(tmp_path: Path) -> None:
    """In a process that finds it before the installed one."""
    site = str(tmp_path / "site")
    package = f"torch_geometric=={OLDEST}"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, package]
    subprocess.run(pip, check=True)
    known = [site, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, known))}
    asked = [sys.executable, "-c", "import torch_geometric; print(torch_geometric.__version__)"]
    told = subprocess.run(asked, env=environment, check=True, capture_output=True, text=True)
    assert told.stdout.strip() == OLDEST
    tests = [sys.executable, "-m", "pytest", "-q", "-W", OWN_WARNING, HERE, "--deselect", __file__]
    ran = subprocess.run(tests, env=environment, cwd=HERE.parents[1], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout
