"""Coverage of what runs in spawned ranks: as pytest-cov measures this process, beside which it is counted."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec

ROOT = Path(__file__).parents[2]
WANTED = "KHOP_TESTS_COVERAGE"  # in the environment of ranks where the tests are measured
P = ParamSpec("P")


def announce() -> None:
    """Have ranks that are spawned from now on measured, where this process is."""
    if _is_measured():
        os.environ[WANTED] = "1"


def covered(function: Callable[P, None]) -> Callable[P, None]:
    """The function as ranks are to run it; pytest-cov takes up the files that they leave beside its own."""

    @wraps(function)
    def measured(*args: P.args, **kwargs: P.kwargs) -> None:
        if WANTED not in os.environ or _is_measured():
            return function(*args, **kwargs)
        import coverage  # tests of GPUs run without it

        tracer = coverage.Coverage(
            data_file=str(ROOT / ".coverage"), data_suffix=True, config_file=str(ROOT / "pyproject.toml")
        )
        tracer.start()
        try:
            return function(*args, **kwargs)
        finally:
            tracer.stop()
            tracer.save()

    return measured


def _is_measured() -> bool:
    return "coverage" in sys.modules and sys.modules["coverage"].Coverage.current() is not None
