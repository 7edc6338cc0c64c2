"""Pictures of runs, profiles and reports, drawn by matplotlib.

Imported when a picture is drawn, because the import takes a second. pyplot is not used, so no display is
needed.
"""

from __future__ import annotations

import io
import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from khop.run.profile import RankRecord, RankSummary, Summary, threads_of
from khop.run.reporting.examined import Confusion, RankingCurve, Scatter
from khop.run.reporting.run_summary import Record, epochs_of, number, scores_of
from khop.run.reporting.time_spent import TimeSpent
from khop.training.step_clock import STAGES, WITHIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _FAINT, _GRID = "#111827", "#6b7280", "#e5e7eb"
_SPLIT_COLORS = {"train": "#9ca3af", "val": "#2563eb", "test": "#ea580c"}
RUN_COLORS = ("#0550ae", "#bc4c00", "#116329", "#8250df", "#bf3989", "#6e7781")
STAGE_COLORS = {
    "sampling": "#60a5fa",
    "gathering": "#a78bfa",
    "waiting": "#dc2626",
    "moving": "#f59e0b",
    "computing": "#10b981",
    "communicating": "#f472b6",
    "saving": "#6b7280",
}
_FEW = 40  # a line with more points has no markers, which would overlap


def _figure(width: float, height: float, title: str) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    spaced = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1, wspace=0.04)
    figure = Figure(figsize=(width, height), dpi=125, layout=spaced)
    size = 11 if width > 6 else 9
    figure.suptitle(title, x=0.01, ha="left", fontsize=size, fontweight="bold", color=_INK, parse_math=False)
    return figure


def _dress(axes: Axes, title: str, grid: Literal["x", "y"]) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=_FAINT, parse_math=False)
    axes.set_axisbelow(True)
    axes.grid(axis=grid, color=_GRID, linewidth=0.8)
    axes.tick_params(colors=_FAINT, labelsize=9, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_GRID)


def _line(axes: Axes, points: Sequence[tuple[float, float]], color: str, label: str = "") -> None:
    marker = "o" if len(points) <= _FEW else ""
    xs, ys = zip(*points, strict=True)
    axes.plot(xs, ys, color=color, linewidth=1.8, marker=marker, markersize=3.5, label=label)


def _count_epochs(axes: Axes, label: str = "epoch") -> None:
    axes.set_xlabel(label, fontsize=9, color=_FAINT)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)


def _png(figure: Figure) -> bytes:
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def drawn_curve(records: Sequence[Record], best: Record, title: str) -> bytes:
    """Draw epochs and evaluations within epochs as a PNG, with the best evaluation marked."""
    figure = _figure(10.4, 3.9, title)
    left, right = figure.subplots(1, 2)
    scores = scores_of(best)
    _, _, metric = next(iter(scores)).partition("_")  # the metric that selected the best epoch comes first
    _line(left, _by_epoch(records, "loss"), _INK)
    for split, color in _SPLIT_COLORS.items():
        name = f"{split}_{metric}"
        if name in scores:
            _line(right, _by_epoch(records, name), color, f"{split}  {scores[name]:.4f}")
    for axes, shown in ((left, "training loss"), (right, metric.replace("_", " "))):
        _dress(axes, shown, "y")
        _count_epochs(axes)
        axes.set_xlim(max(0, min(map(epochs_of, records)) - 0.5), max(map(epochs_of, records)) + 0.5)
    right.axvline(epochs_of(best), color=_FAINT, linewidth=1, linestyle=":")
    note = f"epoch {epochs_of(best):.4g},\nthe best by val"
    figure.legend(
        title=note, loc="outside right center", alignment="left", frameon=False, fontsize=9, title_fontsize=9
    )
    return _png(figure)


def _by_epoch(records: Sequence[Record], name: str) -> list[tuple[float, float]]:
    return sorted((epochs_of(each), number(each[name])) for each in records if name in each)


_STEPS = 10  # steps in the timeline: with more, single spans would be too small to see
_LANE_INCHES, _FRAME_INCHES = 0.26, 2.2


def drawn_timeline(records: Sequence[RankRecord], summary: Summary, title: str) -> bytes:
    """Draw a PNG: the time shares by rank at the top, and the last ten steps below, one lane per thread."""
    from matplotlib.patches import Patch

    lanes = [(record, thread) for record in records for thread in threads_of(record)]
    ranks, rows = len(records), len(lanes)
    figure = _figure(10.4, _FRAME_INCHES + _LANE_INCHES * (ranks + rows), title)
    shares, timeline = figure.subplots(2, 1, height_ratios=[ranks + 1, rows + 1])
    _draw_shares(shares, summary.ranks)
    _draw_lanes(timeline, lanes)
    there = [stage for stage in STAGES if any(rank.of_stage[stage] for rank in summary.ranks)]
    handles = [Patch(color=STAGE_COLORS[stage], label=stage) for stage in there]
    figure.legend(handles=handles, loc="outside lower left", ncols=len(there), frameon=False, fontsize=9)
    return _png(figure)


def _draw_shares(axes: Axes, ranks: Sequence[RankSummary]) -> None:
    for row, rank in enumerate(ranks):
        left = 0.0
        for stage in WITHIN:
            share = 100 * rank.share(stage)
            axes.barh(row, share, left=left, height=0.7, color=STAGE_COLORS[stage])
            left += share
    _name_rows(axes, "share of the training's time, %", [f"rank {rank.rank}" for rank in ranks])
    axes.set_xlim(0, 100)


def _draw_lanes(axes: Axes, lanes: Sequence[tuple[RankRecord, str]]) -> None:
    shown = min(_STEPS, len(lanes[0][0].steps))
    zero = min(record.steps[-shown].own[0].begun for record, _ in lanes)
    end = max(record.steps[-1].own[-1].ended for record, _ in lanes)
    for row, (record, thread) in enumerate(lanes):
        for step in record.steps:
            spans = [span for span in step.spans if span.thread == thread and span.ended > zero]
            bars = [(1e3 * (max(s.begun, zero) - zero), 1e3 * (s.ended - max(s.begun, zero))) for s in spans]
            axes.broken_barh(bars, (row - 0.35, 0.7), facecolors=[STAGE_COLORS[span.stage] for span in spans])
    names = [f"rank {r.rank}" if t == "MainThread" else t.removeprefix("khop-") for r, t in lanes]
    _name_rows(axes, f"the last {shown} steps, ms" if shown > 1 else "one step, ms", names)
    axes.set_xlim(0, 1e3 * (end - zero))


def _name_rows(axes: Axes, title: str, names: Sequence[str]) -> None:
    _dress(axes, title, "x")
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.invert_yaxis()


@dataclass(frozen=True)
class Picture:
    """A picture embedded in a page."""

    title: str
    data: str  # SVG, base64


def _svg(figure: Figure, title: str) -> Picture:
    from matplotlib import rc_context

    content = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "khop"}):  # text as text; equal bytes again
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
    return Picture(title, b64encode(content.getvalue()).decode())


Points = Sequence[tuple[float, float]]
_MOST = 16  # ranks that are drawn
_LONGEST = 18  # characters of a name that are shown
_ANNOTATED = 12  # classes of a confusion matrix with its counts


def line_chart(title: str, lines: Mapping[int, Points], label: str = "epoch") -> Picture | None:
    """Draw a line per run, in the color of its number; None without a finite point."""
    drawn = {run: [point for point in of if all(map(math.isfinite, point))] for run, of in lines.items()}
    if not any(drawn.values()):
        return None
    figure = _figure(4.6, 2.6, title)
    axes = figure.subplots()
    for run, points in drawn.items():
        if points:
            _line(axes, points, RUN_COLORS[run % len(RUN_COLORS)])
    _dress(axes, "", "y")
    _count_epochs(axes, label)
    return _svg(figure, title)


def split_chart(found: Confusion | RankingCurve | Scatter) -> Picture | None:
    """Draw the test split of a run."""
    match found:
        case Confusion():
            return _confusion(found)
        case RankingCurve():
            title = f"links among the first k of {found.negatives + 1} pairs each"
            return line_chart(title, {0: list(zip(found.ks, found.shares, strict=True))}, "k")
    return _scatter(found)


def _confusion(found: Confusion) -> Picture:
    title = "labels (rows) and predictions (columns); darker: a larger share of the row"
    shares = [[count / (sum(row) or 1) for count in row] for row in found.counts]
    names = [name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…" for name in found.names]
    figure = _figure(6.0, 6.0, title)
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", parse_math=False)
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.tick_params(labelsize=8, length=0)
    for row, counts in enumerate(found.counts if len(names) <= _ANNOTATED else ()):
        for column, count in enumerate(counts):
            color = "white" if shares[row][column] > 0.5 else _INK
            axes.text(column, row, f"{count:,}", ha="center", va="center", fontsize=8, color=color)
    return _svg(figure, title)


def _scatter(found: Scatter) -> Picture:
    title = "predictions (up) by label (right)"
    figure = _figure(4.6, 4.6, title)
    axes = figure.subplots()
    values = [value for point in found.points for value in point] or [0.0, 1.0]
    axes.plot([min(values), max(values)], [min(values), max(values)], color=_GRID)
    axes.scatter([label for label, _ in found.points], [of for _, of in found.points], s=6, c=RUN_COLORS[0])
    _dress(axes, "", "y")
    axes.set_xlabel("label", fontsize=9, color=_FAINT)
    return _svg(figure, title)


def time_chart(time: TimeSpent) -> Picture:
    """Draw the shares of the ranks' time, and below the time of a step over the run."""
    ranks, of_all = time.summary.ranks[:_MOST], len(time.summary.ranks)
    omitted = f"; the first {_MOST} of {of_all} ranks" if of_all > _MOST else ""
    title = f"{time.steps:,} steps: shares of the time, and the time of a step over the run{omitted}"
    figure = _figure(9.6, _FRAME_INCHES + len(ranks), title)
    heights = [len(ranks) * 0.3 + 1, *[1.0] * len(ranks)]
    shares, *lanes = figure.subplots(1 + len(ranks), 1, height_ratios=heights)
    _draw_shares(shares, ranks)
    most = max(sum(group[stage] for stage in WITHIN) for groups in time.timeline for group in groups)
    for rank, groups, axes in zip(ranks, time.timeline, lanes, strict=False):
        at = [time.steps * place / len(groups) for place in range(len(groups) + 1)]
        values = [[1e3 * group[stage] for group in (*groups, groups[-1])] for stage in WITHIN]
        axes.stackplot(at, values, colors=[STAGE_COLORS[stage] for stage in WITHIN], step="post")
        _dress(axes, f"rank {rank.rank}, ms", "y")
        axes.set_xlim(0, time.steps)
        axes.set_ylim(0, 1e3 * most or 1)
    lanes[-1].set_xlabel("step", fontsize=9, color=_FAINT)
    return _svg(figure, title)
