"""How long does it take to join items that enough of the same users have, and in how much memory?

10 million edges between 500,000 users and as many items: drawn evenly, and with a skew that makes hubs.
Median of three; memory is what the process grew by at the most, result included.

    python benchmarks/cooccurrence.py
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from harness import Figure, report

from khop.kernels.csc import Csc, build_csc
from khop.kernels.edge_arrays import cooccurrences

EDGES, NODES, MIN_COUNT = 10_000_000, 500_000, 3


def purchases(skew: float) -> tuple[Csc, Csc]:
    """The users of each item, the items of each user; of skew 1 all are alike."""
    draw = torch.Generator().manual_seed(0)
    users, items = ((torch.rand(EDGES, generator=draw).pow(skew) * NODES).long() for _ in range(2))
    return build_csc(users, items, NODES, NODES)[0], build_csc(items, users, NODES, NODES)[0]


def resident_mib(field: str) -> float:
    """VmRSS is what the process holds, VmHWM the most that it held since `clear_refs` was written."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) / 1024


def measured_once(there: Csc, back: Csc, threads: int) -> tuple[float, float, int]:
    """Seconds, MiB that the process grew by at the most, pairs."""
    Path("/proc/self/clear_refs").write_text("5")
    before, begun = resident_mib("VmRSS"), time.perf_counter()
    pairs, _ = cooccurrences(there, back, MIN_COUNT, threads=threads)
    return time.perf_counter() - begun, resident_mib("VmHWM") - before, pairs.num_edges


def measured(name: str, skew: float) -> list[Figure]:
    there, back = purchases(skew)
    ways = float(back.indptr.diff().double().square().sum())
    found = []
    for threads in (2, 1):
        runs = [measured_once(there, back, threads) for _ in range(3)]
        seconds = sorted(run[0] for run in runs)
        notes = {"ways": ways, "pairs": runs[0][2], "grown_mib": round(max(run[1] for run in runs), 1)}
        spread = (round(seconds[0], 2), round(seconds[-1], 2))
        found.append(
            Figure(f"{name}, {threads} threads", round(seconds[1], 2), "s", spread=spread, notes=notes)
        )
    return found


def main() -> None:
    report("cooccurrence", [*measured("even", 1.0), *measured("skewed", 2.0)])


if __name__ == "__main__":
    main()
