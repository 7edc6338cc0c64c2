"""Charts of lines."""

from __future__ import annotations

import re
from dataclasses import replace

from khop.run.reporting.charts import line_chart
from khop.run.reporting.page import page
from run.reporting.test_page import Structure, record, run


def test_curves_with_one_epoch_or_numbers_that_are_not_finite_are_drawn() -> None:
    one = run("a")
    bad = replace(one.summary, records=(record(0, loss=float("nan")),))
    Structure(page([replace(one, summary=bad)], "today"))


def test_a_line_has_its_points_in_order_from_bottom_to_top() -> None:
    drawn = line_chart("loss", {0: [(1, 0.0), (2, 1.0), (3, 2.0)]}, ["a"])
    (places,) = re.findall(r'points="([^"]+)"', drawn)
    xs, ys = zip(
        *((float(x), float(y)) for x, y in (each.split(",") for each in places.split())), strict=True
    )
    assert list(xs) == sorted(xs)
    assert list(ys) == sorted(ys, reverse=True)
    assert line_chart("loss", {0: []}, ["a"]) == ""
