"""Tests of parts that need a package which is not installed are skipped, and the end of the run says so.

Where all packages are installed, as in CI, nothing here has an effect.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from importlib.util import find_spec

import pytest

PACKAGES = ("pyarrow", "duckdb", "ray", "moto")  # extras, and the S3 server of tests


def missing_packages() -> tuple[str, ...]:
    """Return the packages that are not installed."""
    return tuple(name for name in PACKAGES if not _is_there(name))


def needed(text: str, missing: tuple[str, ...]) -> str | None:
    """Return the missing package that a failure names: by Python's error, or by the remedy in khop's own."""
    for name in missing:
        if re.search(rf"No module named '{name}[.']|pip install [^\n']*\b{name}\b", text):
            return name
    return None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a module that imports a missing package."""
    report = yield
    name = needed(str(report.longrepr), missing_packages()) if report.failed else None
    if name is not None:
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: pip install {name}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test that fails for want of a missing package."""
    report = yield
    text = "\n".join([str(report.longrepr), *(content for _, content in report.sections)])
    name = needed(text, missing_packages()) if report.failed else None
    if name is not None:
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, f"Skipped: pip install {name}")
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """State which packages are missing, and how many tests or modules were skipped for them.

    `needed` does not match the line: it is in the output of tests that run pytest, also if they fail.
    """
    for name in missing_packages():
        reports = terminalreporter.stats.get("skipped", [])
        count = sum(f"pip install {name}" in str(report.longrepr) for report in reports)
        terminalreporter.write_line(
            f"{name} is not installed: {count} tests and modules were skipped",
            yellow=True,
        )


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False
