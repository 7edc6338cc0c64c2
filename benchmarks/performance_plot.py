"""The charts of the README and of docs/performance.md: times, speed-ups, and the cost of an edge by size.

Bars are ratios of times to a peer, and nothing else. Figures of one work are side by side, a color per peer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

Result = Mapping[str, Any]
PEERS = {"dgl": "#8fb3d9", "dgl-tuned": "#3b6ea5", "pyg": "#d98b3b"}
WORKS = ("sampling", "loader", "train_step")  # from top to bottom
_SHOWN = {  # by the figure of khop
    "sampling [15,10,5] layered": "sample [15, 10, 5], 1,024 seeds",
    "loader float32": "loader: sample and features",
    "training step float32": "training step, SAGE 3 x 256",
}
_PEER_BARS: dict[
    str, tuple[str, dict[str, str]]
] = {  # the peer's name in the chart, and its figure if that has another expansion
    "dgl-tuned": ("DGL, tuned", {}),
    "pyg": ("PyG", {"sampling [15,10,5] layered": "sampling [15,10,5] subgraph"}),
}
_AGAINST = re.compile(r"(?P<work>.+) \((?P<peer>[\w-]+)\)")
_BAR = 0.8  # height of all bars of a work, where works are 1 apart


def speed_ups(found: Mapping[str, Result]) -> dict[str, dict[str, float]]:
    """Return by work and peer how many times khop is as fast; other ratios are no speed-ups."""
    ratios: dict[str, dict[str, float]] = {}
    for name in WORKS:
        for entry in found.get(name, {"figures": []})["figures"]:
            match = _AGAINST.fullmatch(entry["figure"])
            if match and match["peer"] in PEERS and entry["ratio"] is not None:
                ratios.setdefault(match["work"], {})[match["peer"]] = entry["ratio"]
    return ratios


def draw(found: Mapping[str, Result], path: Path) -> None:
    """Write the picture as PNG."""
    figure, (bars, line) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    draw_speed_ups(bars, speed_ups(found))
    _draw_sizes(line, found.get("scaling", {"figures": []}))
    for axes in (bars, line):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_speed_ups(axes: Axes, ratios: Mapping[str, Mapping[str, float]]) -> None:
    """Draw the bars of a work side by side."""
    labeled: set[str] = set()
    for row, of_work in enumerate(ratios.values()):
        height = _BAR / len(PEERS)
        for place, (peer, ratio) in enumerate(of_work.items()):
            at = row + (place + 0.5 - len(of_work) / 2) * height
            label = None if peer in labeled else f"over {peer}"
            drawn = axes.barh(at, ratio - 1, height, left=1, color=PEERS[peer], label=label)
            axes.bar_label(drawn, [f"{ratio:.1f} x"], padding=3)
            labeled.add(peer)
    axes.set_yticks(range(len(ratios)), list(ratios))
    axes.invert_yaxis()
    axes.set_xscale("log")
    most = max((ratio for of_work in ratios.values() for ratio in of_work.values()), default=1)
    axes.set_xlim(1, most**1.35)  # room for the numbers, on a logarithmic axis
    axes.set_xlabel("times that khop is faster")
    axes.legend(loc="lower right", frameon=False)


def draw_times(found: Mapping[str, Result], path: Path) -> None:
    """Write the README's chart: milliseconds per batch of khop, DGL and PyG for three works."""
    times = {entry["figure"]: entry["value"] for work in WORKS for entry in found[work]["figures"]}
    figure, panels = plt.subplots(1, 3, figsize=(11, 2.6), layout="constrained")
    for axes, (work, title) in zip(panels, _SHOWN.items(), strict=True):
        bars = {"khop": (times[work], "#2f9e63")}
        for peer, (name, other) in _PEER_BARS.items():
            value = times.get(f"{other.get(work, work)} ({peer})")
            if value is not None:
                bars[name] = (value, PEERS[peer])
        values = [value for value, _ in bars.values()]
        drawn = axes.barh(list(bars), values, color=[color for _, color in bars.values()])
        axes.bar_label(drawn, [f"{value:,.0f} ms" for value in values], padding=3)
        axes.set(title=title, xlim=(0, max(values) * 1.3), xticks=[])
        axes.invert_yaxis()
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_sizes(axes: Axes, scaling: Result) -> None:
    sizes = [
        (float(match[1]), entry["value"])
        for entry in scaling["figures"]
        if (match := re.match(r"graph of (\S+) edges", entry["figure"]))
    ]
    if sizes:
        axes.plot(*zip(*sizes, strict=True), marker="o", color="#3b6ea5")
        axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("edges of the graph")
    axes.set_ylabel("ns per sampled edge")
