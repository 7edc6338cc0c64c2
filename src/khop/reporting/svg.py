"""Parts of SVG pictures, with colors from the page's style, so that they fit light and dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

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
