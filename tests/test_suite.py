"""The suite itself: parts of `make test-all`, forked starts, and skips where packages are not installed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import ENVIRONMENT
from support.fork_server import REAL, real_starts
from support.missing_packages import needed
from support.parts import LONG_FILES, PARTS, needed_by

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
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("pyarrow is not installed"))
    assert line == "pyarrow is not installed: 3 tests and modules were skipped"
    assert needed(line, ("pyarrow",)) is None  # it is in the output of a test that runs pytest and fails


def test_a_failure_names_the_missing_package_or_none() -> None:
    assert needed("ModuleNotFoundError: No module named 'pyarrow.flight'", ("pyarrow",)) == "pyarrow"
    assert needed("--on-ray needs Ray: pip install ray", ("pyarrow", "ray")) == "ray"
    assert needed("pip install pyarrow duckdb", ("duckdb",)) == "duckdb"
    assert needed("No module named 'pyarrow'", ()) is None
    assert needed("No module named 'raylib'", ("ray",)) is None


TESTS_FOLDER = Path(__file__).parent


def test_every_long_test_is_in_a_part_and_every_package_of_khop_needs_one() -> None:
    parts = {TESTS_FOLDER / name for part in PARTS.values() for name in part.tests}
    listed = [TESTS_FOLDER / name for name in LONG_FILES]
    assert [str(path) for path in (*parts, *listed) if not path.exists()] == []
    tests = {*TESTS_FOLDER.rglob("test_*.py")} - {Path(__file__)}
    marked = [path for path in tests if "pytest.mark.long" in path.read_text()]
    assert [str(path) for path in (*marked, *listed) if parts.isdisjoint((path, *path.parents))] == []
    packages = [path.parent.name for path in (TESTS_FOLDER.parent / "src" / "khop").glob("*/__init__.py")]
    assert [name for name in packages if not needed_by([f"src/khop/{name}/__init__.py"])] == ["testing"]


def test_a_change_needs_the_parts_of_its_sources_and_of_its_tests() -> None:
    assert needed_by(["docs/tutorials/links.md"]) == ["site", "tutorials"]
    assert needed_by(["tests/test_examples.py", "LICENSE"]) == ["examples"]
    assert needed_by([]) == []
    of_kernels = needed_by(["src/khop/kernels/triton/gather.py", "csrc/core/gather.cpp"])
    assert {"kernels", "sanitizers"} <= {*of_kernels}
    assert {"triton", "levels", "machines"}.isdisjoint(of_kernels)
    assert PARTS["kernels"].ignored() == [*PARTS["triton"].tests]


def probed(folder: Path, **options: object) -> tuple[dict[str, object], int, str]:
    """Return what a process says about its start, its exit code and its stderr."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = subprocess.Popen(
            [sys.executable, "-W", "error::UserWarning", "-m", "support.start_probe", "one", "--two"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
            env={**ENVIRONMENT, "KHOP_PROBE": "x", "KHOP_PARENT": str(os.getpid())}, **options,
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    out, err = process.communicate("a line\n")
    return json.loads(out), process.returncode, err


@pytest.mark.parametrize("options", [{}, {"start_new_session": True}], ids=["same session", "new session"])
def test_a_forked_start_is_as_a_real_one(tmp_path: Path, options: dict[str, object]) -> None:
    with real_starts():
        real = probed(tmp_path, **options)
    forked = probed(tmp_path, **options)
    assert real[0].pop("is_torch_loaded") is False
    assert forked[0].pop("is_torch_loaded") is (os.environ.get(REAL) != "real")
    assert forked == real
    assert real[1] == 3


def test_a_forked_process_is_ended_by_signals(tmp_path: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen(
            [sys.executable, "-m", "support.start_probe", "wait"], env=ENVIRONMENT,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(number)
            assert process.wait(60) == -number


def test_a_forked_process_spawns_with_the_lowest_file_descriptors() -> None:
    """A rank's pipe has the number that a socket of the server had."""
    command = [sys.executable, "-m", "support.start_probe", "spawn"]
    done = subprocess.run(command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"spawned\n", b"")


COLLECTION = """
import re, sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

def normal(name):
    return re.sub("[-_.]+", "-", name).lower()

there, wanted = set(), ["torch", "triton", "numpy", "pytest"]
while wanted:
    name = normal(wanted.pop())
    if name not in there:
        there.add(name)
        try:
            needs = requires(name) or []
        except PackageNotFoundError:
            needs = []
        wanted += [re.match("[A-Za-z0-9._-]+", need)[0] for need in needs if "extra ==" not in need]
blocked = {
    module for module, packages in packages_distributions().items() if there.isdisjoint(map(normal, packages))
} - {"khop"}
assert {"pydantic", "hypothesis", "safetensors", "coverage", "pytest_timeout"} <= blocked, blocked

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in [name for name in sys.modules if name.partition(".")[0] in blocked]:
    del sys.modules[name]
sys.meta_path.insert(0, Blocked())
import pytest
sys.exit(pytest.main(["-m", "gpu", "--collect-only", "-q", "-p", "no:cacheprovider"]))
"""


@pytest.mark.long
def test_tests_of_gpus_are_collected_with_torch_triton_numpy_and_pytest_alone() -> None:
    root = TESTS_FOLDER.parent
    path = os.pathsep.join(map(str, (root / "src", TESTS_FOLDER)))
    done = subprocess.run(
        [sys.executable, "-c", COLLECTION], cwd=root, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    found = done.stdout + done.stderr
    assert done.returncode == 0, found.replace("pip install", "needs")  # else it would be skipped
    mark = re.compile(r"mark\.gpu\b")
    marked = {path for path in TESTS_FOLDER.rglob("test_*.py") if mark.search(path.read_text())}
    marked -= {TESTS_FOLDER / "gpu" / "test_pyg.py"}
    assert len(marked) >= 3
    for file in marked:
        assert f"{file.relative_to(root)}::" in done.stdout, done.stdout
