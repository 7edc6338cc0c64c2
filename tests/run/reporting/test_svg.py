"""Parts of pictures."""

from __future__ import annotations

from khop.run.reporting.charts import element, ticks


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
