"""A byte counter adds what it is told, and reports it only to a callback."""

from __future__ import annotations

import pytest

from khop.graph.progress import Meter, in_bytes


def test_a_meter_reports_item_bytes_done_and_bytes_in_all() -> None:
    reports: list[tuple[str, int, int]] = []
    meter = Meter(10, lambda *report: reports.append(report))
    meter.at("a", 4)
    meter.at("b")
    meter.at("b", 6)
    assert reports == [("a", 4, 10), ("b", 4, 10), ("b", 10, 10)]


def test_a_meter_without_a_callback_counts_too() -> None:
    meter = Meter(3)
    meter.at("a", 2)
    assert meter.done == 2


def test_a_meter_reports_no_more_than_its_total() -> None:
    """Totals of compressed files and of tables with filters are estimates."""
    reports: list[tuple[str, int, int]] = []
    meter = Meter(10, lambda *report: reports.append(report))
    meter.at("a", 25)
    assert reports == [("a", 10, 10)]
    assert meter.done == 25


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 bytes"), (12, "12 bytes"), (999, "999 bytes"), (1000, "1 kB"), (4_540_000, "4.54 MB"),
        (50_000_000, "50 MB"), (99_900_000, "99.9 MB"), (999_700_000, "1,000 MB"), (1_250_000_000, "1.25 GB"),
        (10**12, "1 TB"), (5 * 10**15, "5,000 TB"),
    ],
)  # fmt: skip
def test_sizes_are_for_people(size: int, said: str) -> None:
    assert in_bytes(size) == said
