"""Plot of a run: loss and scores by epoch."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from khop.reporting.scores import Record, number, scores_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = {"train": "#9ca3af", "val": "#2563eb", "test": "#ea580c"}
_INK, _FAINT, _GRID = "#111827", "#6b7280", "#e5e7eb"


def drawn_curve(records: Sequence[Record], best_epoch: int, title: str) -> bytes:
    """Draw the epochs so far as a PNG, with the best epoch marked."""
    # Imported here, because the import takes a second and this is called once. No pyplot: needs no display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    spaced = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1, wspace=0.04)
    figure = Figure(figsize=(10.4, 3.9), dpi=125, layout=spaced)
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=_INK)
    left, right = figure.subplots(1, 2)
    epochs = [number(record["epoch"]) + 1 for record in records]
    _line(left, epochs, [number(record["loss"]) for record in records], _INK, "")
    _finish(left, "training loss", epochs)
    best = scores_of(records[best_epoch])
    _, _, metric = next(iter(best)).partition("_")  # the metric that chose the best epoch comes first
    for split in _COLORS:
        name = f"{split}_{metric}"
        if name not in best:
            continue
        measured = [record for record in records if name in record]
        at = [number(record["epoch"]) + 1 for record in measured]
        values = [number(record[name]) for record in measured]
        _line(right, at, values, _COLORS[split], f"{split}  {best[name]:.4f}")
        _finish(right, metric.replace("_", " "), epochs)
    right.axvline(best_epoch + 1, color=_FAINT, linewidth=1, linestyle=":")
    note = f"epoch {best_epoch + 1},\nthe best by val"
    figure.legend(
        title=note, loc="outside right center", alignment="left", frameon=False, fontsize=9, title_fontsize=9
    )
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _line(axes: Axes, epochs: list[float], values: list[float], color: str, label: str) -> None:
    few = len(epochs) <= 40  # with more epochs, the marks would overlap
    axes.plot(
        epochs, values, color=color, linewidth=1.8, marker="o" if few else "", markersize=3.5, label=label
    )


def _finish(axes: Axes, title: str, epochs: list[float]) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=_FAINT)
    axes.set_xlabel("epoch", fontsize=9, color=_FAINT)
    axes.set_xlim(epochs[0] - 0.5, epochs[-1] + 0.5)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.tick_params(colors=_FAINT, labelsize=9, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_GRID)
