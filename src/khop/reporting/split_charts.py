"""Charts of the test split: a confusion matrix, a ranking curve, or numbers and their predictions."""

from __future__ import annotations

from html import escape

from khop.reporting.examined import Confusion, RankingCurve, Scatter
from khop.reporting.line_chart import line_chart
from khop.reporting.svg import BOTTOM, LEFT, TOP, Axis, element, picture, shown, text, ticks

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
