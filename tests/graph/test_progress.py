"""A byte counter adds what it is told, and reports it only to a callback."""

from __future__ import annotations

from khop.graph.progress import Meter


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
