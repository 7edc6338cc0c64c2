"""Parts of SVG pictures, with colors from the page's style, so that they fit light and dark.

A chart of lines: one per run, by epoch.

Charts of the test split: a confusion matrix, a ranking curve, or numbers and their predictions.

Charts of the time of a run: the shares of each rank, and a timeline per rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from khop.run.reporting.examined import Confusion, RankingCurve, Scatter
from khop.run.reporting.time_spent import TimeSpent
from khop.training.step_clock import WITHIN

LEFT, RIGHT, TOP, BOTTOM = 52, 12, 30, 38  # margins around the plot, in units of the picture


@dataclass(frozen=True)
class Axis:
    """A linear axis from `low` to `high`, drawn from `begin` to `end`."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        """Return the place of a value in the picture."""
        span = (self.high - self.low) or 1.0
        return round(self.begin + (value - self.low) / span * (self.end - self.begin), 2)


def element(name: str, attributes: Mapping[str, object], content: str = "") -> str:
    """Return an element. Underscores in names of attributes become hyphens; `class_` is class."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items()
    )
    return f"<{name}{given}>{content}</{name}>"


def text(x: float, y: float, words: str, anchor: str = "start", class_: str = "tick") -> str:
    """Return a line of text."""
    return element("text", dict(x=x, y=y, text_anchor=anchor, class_=class_), escape(words))


def picture(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    """Return a picture with a title, also for readers of the page without eyes for it."""
    heading = text(0, 14, title, class_="chart-title")
    inside = "".join([element("title", {}, escape(title)), heading, *parts])
    return element("svg", dict(viewBox=f"0 0 {width} {height}", role="img", aria_label=title), inside)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round numbers from `low` to `high`, at most about `most` of them."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def shown(value: float) -> str:
    """Format the number of a tick."""
    return f"{value:.4g}"


Points = Sequence[tuple[float, float]]
_WIDTH, _HEIGHT = 460, 250
_FEW = 40  # points of a line: with more, marks would overlap


def line_chart(title: str, lines: Mapping[int, Points], names: Sequence[str], x_label: str = "epoch") -> str:
    """Draw lines by number of their run; `names` of the runs are shown on touch of a line."""
    drawn = {
        run: [point for point in points if all(map(math.isfinite, point))] for run, points in lines.items()
    }
    every = [point for points in drawn.values() for point in points]
    if not every:
        return ""
    x, y = _axes(every)
    parts = [*_frame(x, y, x_label)]
    for run, points in drawn.items():
        parts += _line(run, names[run], points, x, y)
    return picture(title, _WIDTH, _HEIGHT, parts)


def _axes(points: Points) -> tuple[Axis, Axis]:
    xs, ys = [point[0] for point in points], [point[1] for point in points]
    low, high = min(ys), max(ys)
    room = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return (
        Axis(min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1, LEFT, _WIDTH - RIGHT),
        Axis(low - room, high + room, _HEIGHT - BOTTOM, TOP),
    )


def _frame(x: Axis, y: Axis, x_label: str) -> list[str]:
    parts = []
    for value in ticks(y.low, y.high):
        at = y.at(value)
        parts.append(element("line", dict(x1=x.begin, x2=x.end, y1=at, y2=at, class_="grid")))
        parts.append(text(x.begin - 6, at + 4, shown(value), "end"))
    for value in (each for each in ticks(x.low, x.high, 6) if each == int(each)):
        parts.append(text(x.at(value), y.begin + 16, shown(value), "middle"))
    return [*parts, text((x.begin + x.end) / 2, _HEIGHT - 4, x_label, "middle", "label")]


def _line(run: int, name: str, points: Points, x: Axis, y: Axis) -> list[str]:
    places = " ".join(f"{x.at(a)},{y.at(b)}" for a, b in points)
    parts = [
        element(
            "polyline", dict(points=places, class_=f"line run-{run % 6}"), element("title", {}, escape(name))
        )
    ]
    for a, b in points if len(points) <= _FEW else ():
        told = element("title", {}, f"{escape(name)}: {shown(b)} at {shown(a)}")
        parts.append(
            element("circle", dict(cx=x.at(a), cy=y.at(b), r=2.6, class_=f"dot run-{run % 6}"), told)
        )
    return parts


_SIDE = 420
_NAMES = 130  # room for names of classes
_LONGEST = 18  # characters of a name that are shown
_SCATTER = 360


def split_chart(found: Confusion | RankingCurve | Scatter) -> str:
    """Draw the test split of a run."""
    match found:
        case Confusion():
            return _confusion(found)
        case RankingCurve():
            title = f"links among the first k, of {found.negatives + 1} pairs each"
            return line_chart(title, {0: list(zip(found.ks, found.shares, strict=True))}, ["share"], "k")
    return _scatter(found)


def _confusion(found: Confusion) -> str:
    count = len(found.names)
    cell = _SIDE / count
    parts = []
    for row, (name, counts) in enumerate(zip(found.names, found.counts, strict=True)):
        middle = TOP + (row + 0.5) * cell
        parts.append(text(_NAMES - 6, middle + 4, _short(name), "end"))
        of_class = sum(counts)
        for column, number in enumerate(counts):
            parts.append(_cell(found, row, column, number, of_class))
        place = f"rotate(-60 {_NAMES + (row + 0.5) * cell:.1f} {TOP + _SIDE + 14})"
        label: dict[str, object] = {
            "x": round(_NAMES + (row + 0.5) * cell, 1),
            "y": TOP + _SIDE + 14,
            "transform": place,
        }
        parts.append(element("text", label | {"text_anchor": "end", "class_": "tick"}, escape(_short(name))))
    title = "labels (rows) and predictions (columns); darker: a larger share of the row"
    return picture(title, _NAMES + _SIDE + 10, TOP + _SIDE + _NAMES, parts)


def _cell(found: Confusion, row: int, column: int, number: int, of_class: int) -> str:
    cell = _SIDE / len(found.names)
    share = number / of_class if of_class else 0.0
    told = f"{found.names[row]} predicted as {found.names[column]}: {number:,} ({share:.0%})"
    x, y = round(_NAMES + column * cell, 2), round(TOP + row * cell, 2)
    place: dict[str, object] = {"x": x, "y": y, "width": round(cell - 1, 2), "height": round(cell - 1, 2)}
    kind = "right" if row == column else "confused"
    drawn = element("rect", place | {"class_": "cell"}, element("title", {}, escape(told)))
    if share:
        drawn += element(
            "rect", place | {"class_": kind, "opacity": f"{share:.3f}"}, element("title", {}, escape(told))
        )
    if cell >= 26 and number:
        drawn += text(round(x + cell / 2, 1), round(y + cell / 2 + 4, 1), f"{number:,}", "middle", "count")
    return drawn


def _scatter(found: Scatter) -> str:
    values = [value for point in found.points for value in point]
    low, high = min(values, default=0.0), max(values, default=1.0)
    x = Axis(low, high, LEFT, LEFT + _SCATTER)
    y = Axis(low, high, TOP + _SCATTER, TOP)
    parts = [element("line", dict(x1=x.begin, y1=y.begin, x2=x.end, y2=y.end, class_="grid"))]
    for value in ticks(low, high):
        parts.append(text(x.at(value), y.begin + 16, shown(value), "middle"))
        parts.append(text(x.begin - 6, y.at(value) + 4, shown(value), "end"))
    for label, prediction in found.points:
        told = element("title", {}, f"label {shown(label)}, prediction {shown(prediction)}")
        parts.append(
            element("circle", dict(cx=x.at(label), cy=y.at(prediction), r=2.2, class_="dot run-0"), told)
        )
    parts.append(text(LEFT + _SCATTER / 2, TOP + _SCATTER + BOTTOM - 4, "label", "middle", "label"))
    title = "predictions (up) by label (right)"
    return picture(title, LEFT + _SCATTER + 12, TOP + _SCATTER + BOTTOM, parts)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


_WIDEST, _ROW = 940, 24
_LANE = 64  # height of a rank in the timeline
_MOST = 16  # ranks that are drawn


def time_charts(time: TimeSpent) -> str:
    """Draw the shares of the ranks' time, and below the time of a step over the run."""
    return _shares(time) + _timeline(time)


def _shares(time: TimeSpent) -> str:
    axis = Axis(0, 100, LEFT, _WIDEST - RIGHT)
    ranks = time.summary.ranks[:_MOST]
    parts = []
    for row, rank in enumerate(ranks):
        top, left = TOP + row * _ROW, 0.0
        parts.append(text(LEFT - 6, top + 15, f"rank {rank.rank}", "end"))
        for stage in WITHIN:
            share = 100 * rank.share(stage)
            told = element("title", {}, f"rank {rank.rank}, {stage}: {share:.1f} %")
            width = round(axis.at(left + share) - axis.at(left), 2)
            if width > 0:
                place: dict[str, object] = {"x": axis.at(left), "y": top, "width": width, "height": _ROW - 6}
                parts.append(element("rect", place | {"class_": f"stage-{stage}"}, told))
            left += share
    bottom = TOP + len(ranks) * _ROW
    parts += [text(axis.at(value), bottom + 14, f"{value:g} %", "middle") for value in (0, 25, 50, 75, 100)]
    title = f"share of the time in training, {time.steps:,} steps"
    return picture(title + _omitted(time), _WIDEST, bottom + 22, parts)


def _timeline(time: TimeSpent) -> str:
    ranks = time.timeline[:_MOST]
    most = max((_total(each) for rank in ranks for each in rank), default=0.0) or 1.0
    axis = Axis(0, max(map(len, ranks)), LEFT, _WIDEST - RIGHT)
    parts = []
    for row, groups in enumerate(ranks):
        base = TOP + (row + 1) * _LANE
        scale = Axis(0, 1000 * most, base, base - _LANE + 12)
        parts.append(text(LEFT - 6, base - _LANE / 2 + 10, f"rank {row}", "end"))
        parts.append(element("line", dict(x1=axis.begin, x2=axis.end, y1=base, y2=base, class_="grid")))
        for number, group in enumerate(groups):
            parts += _column(group, number, axis, scale)
    bottom = TOP + len(ranks) * _LANE
    of_steps = Axis(0, time.steps, LEFT, _WIDEST - RIGHT)
    parts += [text(of_steps.at(at), bottom + 16, shown(at), "middle") for at in ticks(0, time.steps, 8)]
    parts.append(text((LEFT + _WIDEST) / 2, bottom + 32, "step", "middle", "label"))
    title = f"timeline: time of a step over the run, up to {1000 * most:,.0f} ms"
    return picture(title + _omitted(time), _WIDEST, bottom + 38, parts)


def _column(group: Mapping[str, float], number: int, axis: Axis, scale: Axis) -> list[str]:
    parts, below = [], 0.0
    width = round(axis.at(number + 1) - axis.at(number) + 0.3, 2)
    for stage in WITHIN:
        milliseconds = 1000 * group[stage]
        height = round(scale.at(below) - scale.at(below + milliseconds), 2)
        if height > 0:
            place: dict[str, object] = {
                "x": axis.at(number),
                "y": scale.at(below + milliseconds),
                "width": width,
            }
            told = element("title", {}, f"{stage}: {milliseconds:.3g} ms")
            parts.append(element("rect", place | {"height": height, "class_": f"stage-{stage}"}, told))
        below += milliseconds
    return parts


def _total(group: Mapping[str, float]) -> float:
    return sum(group[stage] for stage in WITHIN)


def _omitted(time: TimeSpent) -> str:
    ranks = len(time.summary.ranks)
    return f"; the first {_MOST} of {ranks} ranks" if ranks > _MOST else ""
