"""Charts of the time of a run."""

from __future__ import annotations

import re
from pathlib import Path

from khop.run.reporting.charts import time_charts
from khop.run.reporting.page import ReportedRun, page
from khop.run.reporting.run_summary import RunSummary
from run.reporting.test_page import Structure, run


def test_a_run_of_many_ranks_and_a_run_without_anything_have_a_page() -> None:
    many = run("many", ranks=40)
    assert "the first 16 of 40 ranks" in page([many], "today")
    none = RunSummary(Path("none"), {"graph": "g"}, (), {}, {}, 0.0)
    text = Structure(page([ReportedRun("none", none, None, (), "No checkpoint.")], "today")).text
    assert "No epoch has been evaluated yet." in text
    assert "No checkpoint." in text


def test_the_bars_of_a_rank_fill_its_row() -> None:
    time = run("a", ranks=1).time
    assert time is not None
    row = time_charts(time).partition("</svg>")[0]
    widths = [float(width) for width in re.findall(r' width="([\d.]+)"', row)]
    assert abs(sum(widths) - 876) < 1
