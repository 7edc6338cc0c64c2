"""The picture of docs/performance.md: only speed-ups are bars, and its labels fit."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl
import pytest

mpl.use("Agg")
import matplotlib.pyplot as plt

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import performance_plot  # noqa: E402

FOUND = {
    name: json.loads((BENCHMARKS / "results" / f"{name}.json").read_text()) for name in performance_plot.WORKS
}


def test_no_bar_is_a_figure_without_a_peer() -> None:
    ratios = performance_plot.speed_ups(FOUND)
    assert all("thread" not in work for work in ratios)
    assert {peer for of_work in ratios.values() for peer in of_work} <= set(performance_plot.PEERS)
    ours = [entry for found in FOUND.values() for entry in found["figures"] if "(" in entry["figure"]]
    against = [entry for entry in ours if entry["figure"].endswith(("(dgl)", "(dgl-tuned)", "(pyg)"))]
    assert sum(map(len, ratios.values())) == len([entry for entry in against if entry["ratio"] is not None])


@pytest.mark.parametrize("factor", [1, 40])
def test_labels_of_bars_fit_and_do_not_overlap(factor: int) -> None:
    ratios = {
        work: {peer: 1 + (ratio - 1) * factor for peer, ratio in of_work.items()}
        for work, of_work in performance_plot.speed_ups(FOUND).items()
    }
    figure, axes = plt.subplots(figsize=(6, 4.5), layout="constrained")
    performance_plot.draw_speed_ups(axes, ratios)
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in axes.texts]
    inside = axes.get_window_extent()
    assert len(boxes) == sum(map(len, ratios.values()))
    assert all(box.x1 <= inside.x1 for box in boxes)
    assert not any(box.overlaps(other) for at, box in enumerate(boxes) for other in boxes[:at])
    plt.close(figure)
