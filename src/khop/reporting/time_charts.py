"""Charts of the time of a run: the shares of each rank, and a timeline per rank."""

from __future__ import annotations

from collections.abc import Mapping

from khop.reporting.svg import LEFT, RIGHT, TOP, Axis, element, picture, shown, text, ticks
from khop.reporting.time_spent import TimeSpent
from khop.training.step_clock import WITHIN

_WIDTH, _ROW = 940, 24
_LANE = 64  # height of a rank in the timeline
_MOST = 16  # ranks that are drawn


def time_charts(time: TimeSpent) -> str:
    """Draw the shares of the ranks' time, and below the time of a step over the run."""
    return _shares(time) + _timeline(time)


def _shares(time: TimeSpent) -> str:
    axis = Axis(0, 100, LEFT, _WIDTH - RIGHT)
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
    return picture(title + _omitted(time), _WIDTH, bottom + 22, parts)


def _timeline(time: TimeSpent) -> str:
    ranks = time.timeline[:_MOST]
    most = max((_total(each) for rank in ranks for each in rank), default=0.0) or 1.0
    axis = Axis(0, max(map(len, ranks)), LEFT, _WIDTH - RIGHT)
    parts = []
    for row, groups in enumerate(ranks):
        base = TOP + (row + 1) * _LANE
        scale = Axis(0, 1000 * most, base, base - _LANE + 12)
        parts.append(text(LEFT - 6, base - _LANE / 2 + 10, f"rank {row}", "end"))
        parts.append(element("line", dict(x1=axis.begin, x2=axis.end, y1=base, y2=base, class_="grid")))
        for number, group in enumerate(groups):
            parts += _column(group, number, axis, scale)
    bottom = TOP + len(ranks) * _LANE
    of_steps = Axis(0, time.steps, LEFT, _WIDTH - RIGHT)
    parts += [text(of_steps.at(at), bottom + 16, shown(at), "middle") for at in ticks(0, time.steps, 8)]
    parts.append(text((LEFT + _WIDTH) / 2, bottom + 32, "step", "middle", "label"))
    title = f"timeline: time of a step over the run, up to {1000 * most:,.0f} ms"
    return picture(title + _omitted(time), _WIDTH, bottom + 38, parts)


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
