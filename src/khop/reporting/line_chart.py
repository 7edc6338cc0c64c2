"""A chart of lines: one per run, by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from khop.reporting.svg import BOTTOM, LEFT, RIGHT, TOP, Axis, element, picture, shown, text, ticks

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
