"""Tests that a GPU can run, and a plugin of pytest: results at once, and no worker with a broken GPU.

After an illegal access, each later call of CUDA in the process fails. A worker of pytest-xdist that such a
test has broken ends after it; pytest-xdist then starts another one for the tests that are left.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

TESTS = (  # on the device instead of the interpreter
    "tests/gpu",
    "tests/kernels/triton",
    "tests/kernels/test_edge_rows.py",
    "tests/kernels/test_linear.py",
    "tests/kernels/test_segment.py",
    "tests/sampling/on_device",
    "tests/sampling/test_engines.py",
    "tests/sampling/test_paths.py",
    "tests/loading/device/test_batch_slot.py",
    "tests/loading/device/test_self_proof.py",
    "tests/loading/device/test_streams.py",
    "tests/loading/test_deferred_columns.py",
    "tests/loading/device/test_transfer.py",
    "tests/training/test_captured_steps.py",
    "tests/models/test_padded_batches.py",
    "tests/models/test_rgcn.py",
)
LEFT_OUT = ("tests/kernels/triton/test_compilation.py",)  # needs no GPU, and takes minutes
BROKEN = 71  # exit code of a worker whose GPU an error has made unusable
MOST_TEXT = 3000  # characters of a failure


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the file of results."""
    parser.addoption("--results", type=Path, help="File to which a line of JSON is added for each test.")


def pytest_configure(config: pytest.Config) -> None:
    """Watch the GPU in workers; write results in the process that has those of all workers."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(BrokenGpu())
    elif config.option.results is not None:
        config.pluginmanager.register(Results(config.option.results))


class Results:
    """A line for each test: its outcome, its seconds, and the end of its error."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a line for the call of a test, and for a set-up or tear-down that did not pass."""
        if report.when != "call" and report.passed:
            return
        line = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 2)}
        if report.failed:
            line["error"] = str(report.longrepr)[-MOST_TEXT:]
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


class BrokenGpu:
    """The end of a worker after a test that has made its GPU unusable."""

    def __init__(self) -> None:
        self._has_failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        self._has_failed |= report.failed

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        """End the process if a test failed and the GPU answers with an error since."""
        if self._has_failed and is_broken():
            os._exit(BROKEN)
        self._has_failed = False


def is_broken() -> bool:
    """Return True if the GPU of this process answers with an error."""
    import torch

    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
