"""Plot of a run: loss and scores by epoch.

Plot of a profile: the shares of each rank's time, and its threads over the last steps.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from khop.run.profile import RankRecord, Summary, threads_of
from khop.run.reporting.run_summary import Record, number, scores_of
from khop.training.step_clock import STAGES, WITHIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _FAINT, _GRID = "#111827", "#6b7280", "#e5e7eb"

_INK, _FAINT, _GRID = "#111827", "#6b7280", "#e5e7eb"

_INK, _FAINT, _GRID = "#111827", "#6b7280", "#e5e7eb"


_COLORS = {"train": "#9ca3af", "val": "#2563eb", "test": "#ea580c"}


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


_STAGE_COLORS = {
    "sampling": "#60a5fa",
    "gathering": "#a78bfa",
    "waiting": "#dc2626",
    "moving": "#f59e0b",
    "computing": "#10b981",
    "communicating": "#f472b6",
    "saving": "#6b7280",
}
_STEPS = 10  # steps in the timeline: with more, single spans would be too small to see
_LANE_INCHES, _FRAME_INCHES = 0.26, 2.2


def drawn_timeline(records: Sequence[RankRecord], summary: Summary, title: str) -> bytes:
    """Draw a PNG: the time shares by rank at the top, and the last ten steps below, one lane per thread."""
    # Imported here, because the import takes a second and this is called once. No pyplot: needs no display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.patches import Patch

    lanes = [(record, thread) for record in records for thread in threads_of(record)]
    ranks, rows = len(records), len(lanes)
    height = _FRAME_INCHES + _LANE_INCHES * (ranks + rows)
    figure = Figure(figsize=(10.4, height), dpi=125, layout=ConstrainedLayoutEngine(h_pad=0.08))
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=_INK)
    shares, timeline = figure.subplots(2, 1, height_ratios=[ranks + 1, rows + 1])
    _draw_shares(shares, summary)
    _draw_lanes(timeline, lanes)
    there = [stage for stage in STAGES if any(rank.of_stage[stage] for rank in summary.ranks)]
    handles = [Patch(color=_STAGE_COLORS[stage], label=stage) for stage in there]
    figure.legend(handles=handles, loc="outside lower left", ncols=len(there), frameon=False, fontsize=9)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _draw_shares(axes: Axes, summary: Summary) -> None:
    for row, rank in enumerate(summary.ranks):
        left = 0.0
        for stage in WITHIN:
            share = 100 * rank.share(stage)
            axes.barh(row, share, left=left, height=0.7, color=_STAGE_COLORS[stage])
            left += share
    _finish_timeline(axes, "share of the training's time, %", [f"rank {rank.rank}" for rank in summary.ranks])
    axes.set_xlim(0, 100)


def _draw_lanes(axes: Axes, lanes: Sequence[tuple[RankRecord, str]]) -> None:
    shown = min(_STEPS, len(lanes[0][0].steps))
    zero = min(record.steps[-shown].own[0].begun for record, _ in lanes)
    end = max(record.steps[-1].own[-1].ended for record, _ in lanes)
    for row, (record, thread) in enumerate(lanes):
        for step in record.steps:
            spans = [span for span in step.spans if span.thread == thread and span.ended > zero]
            bars = [(1e3 * (max(s.begun, zero) - zero), 1e3 * (s.ended - max(s.begun, zero))) for s in spans]
            axes.broken_barh(
                bars, (row - 0.35, 0.7), facecolors=[_STAGE_COLORS[span.stage] for span in spans]
            )
    names = [f"rank {r.rank}" if t == "MainThread" else t.removeprefix("khop-") for r, t in lanes]
    _finish_timeline(axes, f"the last {shown} steps, ms" if shown > 1 else "one step, ms", names)
    axes.set_xlim(0, 1e3 * (end - zero))


def _finish_timeline(axes: Axes, title: str, names: Sequence[str]) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=_FAINT)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_axisbelow(True)
    axes.grid(axis="x", color=_GRID, linewidth=0.8)
    axes.tick_params(colors=_FAINT, labelsize=9, length=0)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
