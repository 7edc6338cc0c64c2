"""Tests that need a package which is not installed are skipped with the words to install it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.missing_packages import needed

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pyarrow":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
pytest_plugins = ["support.missing_packages"]
"""
MODULE = "import pyarrow.flight\n\ndef test_never_runs():\n    raise AssertionError\n"
TESTS = """
def test_that_imports():
    import pyarrow

def test_that_is_told():
    raise ValueError("servers need pyarrow, for Arrow Flight: pip install pyarrow")

def test_that_fails_for_another_reason():
    raise ValueError("no such column")

def test_that_passes():
    pass
"""


def test_a_missing_package_skips_what_needs_it_and_is_named_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(BLOCKED)
    (tmp_path / "test_module.py").write_text(MODULE)
    (tmp_path / "test_some.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:xdist", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 1 passed, 3 skipped" in done.stdout, done.stdout + done.stderr
    assert "test_that_fails_for_another_reason" in done.stdout
    assert "pyarrow is not installed: 3 tests and modules were skipped; pip install pyarrow" in done.stdout


def test_a_failure_names_the_missing_package_or_none() -> None:
    assert needed("ModuleNotFoundError: No module named 'pyarrow.flight'", ("pyarrow",)) == "pyarrow"
    assert needed("--on-ray needs Ray: pip install ray", ("pyarrow", "ray")) == "ray"
    assert needed("pip install pyarrow duckdb", ("duckdb",)) == "duckdb"
    assert needed("No module named 'pyarrow'", ()) is None
    assert needed("No module named 'raylib'", ("ray",)) is None
