"""The picture of a profile has a bar per rank and a lane per thread, for any number of them."""

from __future__ import annotations

import io

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from khop.cli.plots import drawn_timeline
from khop.run.profile import summarized
from support.synthetic_profiles import records_of


@pytest.mark.parametrize(("ranks", "steps"), [(1, 1), (2, 3), (4, 30)])
def test_any_number_of_ranks_and_steps_makes_a_picture(ranks: int, steps: int) -> None:
    records = records_of(*[{} for _ in range(ranks)], steps=steps)
    assert imread(io.BytesIO(drawn_timeline(records, summarized(records), "a run"))).shape[1] == 1300


def test_the_picture_names_ranks_threads_and_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (drawn.append(self), save(self, *a, **k)))
    records = records_of({}, {"forward": 0.2})
    drawn_timeline(records, summarized(records), "a run")
    (figure,) = drawn
    shares, lanes = figure.axes
    assert [label.get_text() for label in shares.get_yticklabels()] == ["rank 0", "rank 1"]
    assert [label.get_text() for label in lanes.get_yticklabels()] == [
        "rank 0",
        "worker-0",
        "rank 1",
        "worker-0",
    ]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.texts] == [
        "sampling", "gathering", "waiting", "moving", "computing", "communicating", "saving",
    ]  # fmt: skip
