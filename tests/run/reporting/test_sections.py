"""Sections of a report."""

from __future__ import annotations

from khop.run.reporting.page import page
from run.reporting.test_page import Structure, run


def test_runs_stand_side_by_side() -> None:
    text = Structure(page([run("one"), run("two")], "today")).text
    assert "0.7000" in text
    assert "0.4000 (majority 0.2500)" in text
    assert "graphs/one" in text
    assert "graphs/two" in text
    assert "Settings that differ" not in Structure(page([run("one")], "today")).text
