"""Contents of a report for one run."""

from __future__ import annotations

from dataclasses import dataclass

from khop.reporting.examined import Examined
from khop.reporting.run_summary import RunSummary
from khop.reporting.time_spent import TimeSpent


@dataclass(frozen=True)
class ReportedRun:
    """A run and the results of its examination."""

    name: str
    summary: RunSummary
    time: TimeSpent | None  # None if its steps have no times
    advice: tuple[str, ...]  # sentences on the bottleneck and on the setting to change
    split: Examined | str  # the test split, or a sentence with the reason why it is missing
