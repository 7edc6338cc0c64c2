"""The slowest test files, printed at the end of a run of many."""

from __future__ import annotations

from collections import Counter

import pytest

SHOWN = 10


class SlowestFiles:
    """A plugin of pytest: the seconds of each file's tests, with the set-ups that they share."""

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the slowest files of a run of more files than that."""
        seconds = Counter[str]()
        for reports in terminalreporter.stats.values():
            for report in reports:
                if isinstance(report, pytest.TestReport):
                    seconds[report.nodeid.partition("::")[0]] += report.duration
        if len(seconds) <= SHOWN:
            return
        terminalreporter.section(f"slowest {SHOWN} of {len(seconds)} files")
        for file, duration in seconds.most_common(SHOWN):
            terminalreporter.write_line(f"{duration:7.1f} s  {file}")
