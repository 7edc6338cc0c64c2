"""Charts of lines.

Pictures of the test split.

Parts of pictures.

Charts of the time of a run.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from khop.run.reporting.charts import element, line_chart, ticks, time_charts
from khop.run.reporting.examined import Confusion, Examined, RankingCurve, Scatter
from khop.run.reporting.page import ReportedRun, page
from khop.run.reporting.run_summary import RunSummary
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


@pytest.mark.parametrize(
    "picture",
    [
        RankingCurve((1, 10, 100), (0.1, 0.5, 1.0), 99),
        Scatter(((1.0, 2.0), (3.0, 3.0))),
        Scatter(()),
        Confusion(tuple(f"class {n}" for n in range(31)), tuple((1,) * 31 for _ in range(31))),
        None,
    ],
)
def test_every_kind_of_split_has_a_picture(picture: Confusion | RankingCurve | Scatter | None) -> None:
    split = Examined(picture, ("id",), (("a",),), "The worst.")
    Structure(page([replace(run("a"), split=split)], "today"))


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0.0, 1.0) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(3.0, 97.0) == [20.0, 40.0, 60.0, 80.0]
    assert ticks(2.0, 2.0) == [2.0]
    assert all(0.013 <= each <= 0.017 for each in ticks(0.013, 0.017))


def test_attributes_are_escaped() -> None:
    assert (
        element("a", {"class_": 'x"<', "stroke_width": 2}, "b")
        == '<a class="x&quot;&lt;" stroke-width="2">b</a>'
    )


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
