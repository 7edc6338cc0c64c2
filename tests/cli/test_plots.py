"""The picture of a run: drawn without a display, and only then is matplotlib imported."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from khop.cli.plots import drawn_curve
from khop.run.reporting.run_summary import Record


def records_of(epochs: int, metric: str = "accuracy") -> list[Record]:
    scores = {f"train_{metric}": 0.9, f"val_{metric}": 0.8, f"test_{metric}": 0.7}
    return [{"epoch": e, "loss": 1 / (e + 1), **scores, "seconds": {"total": 1.0}} for e in range(epochs)]


@pytest.mark.parametrize("epochs", [1, 2, 100])
def test_any_number_of_epochs_makes_a_picture(epochs: int) -> None:
    height, width, _ = imread(io.BytesIO(drawn_curve(records_of(epochs), epochs - 1, "a run"))).shape
    assert (width, height) == (1300, 487)


def test_the_picture_says_loss_metric_and_the_scores_at_the_best_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (drawn.append(self), save(self, *a, **k)))
    drawn_curve(records_of(5, "roc_auc"), 3, "debian, sage")
    (figure,) = drawn
    left, right = figure.axes
    assert figure.get_suptitle() == "debian, sage"
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == ("training loss", "roc auc")
    (legend,) = figure.legends
    assert legend.get_title().get_text() == "epoch 4,\nthe best by val"
    assert [text.get_text() for text in legend.texts] == ["train  0.9000", "val  0.8000", "test  0.7000"]
    assert list(left.lines[0].get_xdata()) == [1, 2, 3, 4, 5]


def test_the_command_does_not_import_matplotlib_before_it_draws() -> None:
    code = "import sys, khop.cli.main, khop.cli.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
