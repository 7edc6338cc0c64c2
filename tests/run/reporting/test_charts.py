"""Pictures of runs, profiles and reports: of any number of epochs, ranks and classes."""

from __future__ import annotations

import base64
import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from khop.run.profile import summarized
from khop.run.reporting.charts import (
    Picture,
    drawn_curve,
    drawn_timeline,
    line_chart,
    split_chart,
    time_chart,
)
from khop.run.reporting.examined import Confusion, RankingCurve, Scatter
from khop.run.reporting.page import ReportedRun, page
from khop.run.reporting.run_summary import Record, RunSummary
from run.reporting.test_page import Structure, record, run
from support.synthetic_profiles import records_of

ODD = "$<b>$"  # a formula to matplotlib, and markup to a browser


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved."""
    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
    return figures


def words_of(picture: Picture | None) -> str:
    """The text of a picture in a page."""
    assert picture is not None
    return " ".join(ElementTree.fromstring(base64.b64decode(picture.data)).itertext())


def epochs_of(count: int, metric: str = "accuracy") -> list[Record]:
    scores = {f"train_{metric}": 0.9, f"val_{metric}": 0.8, f"test_{metric}": 0.7}
    return [{"epoch": e, "loss": 1 / (e + 1), **scores, "seconds": {"total": 1.0}} for e in range(count)]


@pytest.mark.core(1)
@pytest.mark.parametrize("epochs", [1, 2, 100])
def test_any_number_of_epochs_makes_a_picture(epochs: int) -> None:
    height, width, _ = imread(io.BytesIO(drawn_curve(epochs_of(epochs), epochs_of(epochs)[-1], ODD))).shape
    assert (width, height) == (1300, 487)


def test_a_curve_says_loss_metric_and_the_scores_at_the_best_epoch(drawn: list[Figure]) -> None:
    records = epochs_of(5, "roc_auc")
    drawn_curve(records, records[3], "debian, sage")
    (figure,) = drawn
    left, right = figure.axes
    assert figure.get_suptitle() == "debian, sage"
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == ("training loss", "roc auc")
    (legend,) = figure.legends
    assert legend.get_title().get_text() == "epoch 4,\nthe best by val"
    assert [text.get_text() for text in legend.texts] == ["train  0.9000", "val  0.8000", "test  0.7000"]
    assert list(left.lines[0].get_xdata()) == [1, 2, 3, 4, 5]


@pytest.mark.long
def test_the_command_does_not_import_matplotlib_before_it_draws() -> None:
    code = "import sys, khop.cli.main, khop.cli.train; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.core(1)
@pytest.mark.parametrize(("ranks", "steps"), [(1, 1), (2, 3), (4, 30)])
def test_any_number_of_ranks_and_steps_makes_a_picture(ranks: int, steps: int) -> None:
    records = records_of(*[{} for _ in range(ranks)], steps=steps)
    assert imread(io.BytesIO(drawn_timeline(records, summarized(records), "a run"))).shape[1] == 1300


@pytest.mark.long
def test_a_timeline_names_ranks_threads_and_stages(drawn: list[Figure]) -> None:
    records = records_of({}, {"forward": 0.2})
    drawn_timeline(records, summarized(records), "a run")
    (figure,) = drawn
    shares, lanes = figure.axes
    assert [label.get_text() for label in shares.get_yticklabels()] == ["rank 0", "rank 1"]
    names = ["rank 0", "worker-0", "rank 1", "worker-0"]
    assert [label.get_text() for label in lanes.get_yticklabels()] == names
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.texts] == [
        "sampling", "gathering", "waiting", "moving", "computing", "communicating", "saving",
    ]  # fmt: skip


def test_a_line_has_its_finite_points_in_order(drawn: list[Figure]) -> None:
    points = [(1.0, 0.5), (2.0, float("nan")), (3.0, 2.0)]
    picture = line_chart("loss", {0: points, 1: []})
    (axes,) = drawn[0].axes
    assert axes.lines[0].get_xydata().tolist() == [[1, 0.5], [3, 2]]
    assert "loss" in words_of(picture)
    assert picture == line_chart("loss", {0: points, 1: []})
    assert line_chart("loss", {0: []}) is None


@pytest.mark.core(3)
@pytest.mark.parametrize(
    ("picture", "words"),
    [
        (RankingCurve((1, 10, 100), (0.1, 0.5, 1.0), 99), "links among the first k of 100 pairs each"),
        (Scatter(((1.0, 2.0), (3.0, 3.0))), "predictions (up) by label (right)"),
        (Scatter(()), "predictions (up) by label (right)"),
        (Confusion(("cat", ODD), ((3, 1), (0, 1234))), f"{ODD} 3 1 0 1,234"),
        (Confusion(tuple(f"class {n}" for n in range(31)), tuple((1,) * 31 for _ in range(31))), "class 30"),
    ],
)
def test_every_kind_of_split_has_a_picture(picture: Confusion | RankingCurve | Scatter, words: str) -> None:
    assert words in " ".join(words_of(split_chart(picture)).split())


@pytest.mark.long
def test_a_run_of_many_ranks_and_a_run_without_anything_have_a_page() -> None:
    many = run("many", ranks=40)
    assert "the first 16 of 40 ranks" in page([many], "today")
    none = RunSummary(Path("none"), {"graph": "g"}, (), {}, {}, 0.0)
    bad = replace(many.summary, records=(record(0, loss=float("nan")),))
    runs = [ReportedRun("none", none, None, (), "No checkpoint."), replace(run("a"), summary=bad)]
    text = Structure(page(runs[:1], "today")).text
    assert "No epoch has been evaluated yet." in text
    assert "No checkpoint." in text
    Structure(page(runs, "today"))


def test_the_bars_of_a_rank_fill_its_row(drawn: list[Figure]) -> None:
    time = run("a", ranks=1).time
    assert time is not None
    time_chart(time)
    shares, lane = drawn[0].axes
    assert sum(bar.get_width() for bar in shares.patches) == pytest.approx(100)
    assert lane.get_xlim() == (0, time.steps)
