"""How fast are derived files checked when they are first used?

A derived file of --gib GiB in the page cache, checked at its first use; the digest alone, in memory, by
threads; sha256, which graph.json holds, of the same bytes. Opening the folder stays a matter of milliseconds.

usage: python benchmarks/digests.py [--gib 1] [--rounds 5]
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from harness import Figure, report

from khop.graph.build import write_graph
from khop.graph.derived import Derived
from khop.graph.store import open_csc_graph
from khop.graph.tables import EdgeTable, NodeTable
from khop.kernels.philox import digest


def seconds(action: Callable[[], object], rounds: int) -> float:
    action()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    count = int(options.gib * (1 << 27))
    values = torch.arange(count)
    gigabytes = 8 * count / 1e9
    actions: dict[str, Callable[[], object]] = {
        f"digest in memory, {threads} thread{'s' * (threads > 1)}": lambda threads=threads: digest(
            values, threads=threads
        )
        for threads in (1, 2, 4)
    }
    actions["sha256 in memory"] = lambda: hashlib.sha256(values.numpy().data)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch)
        Derived(path, "f" * 64).vector("x", count, lambda: values, ())
        actions["first use of a derived file, in the page cache"] = lambda: Derived(path, "f" * 64).vector(
            "x", count, lambda: values, ()
        )
        figures = [
            Figure(name, round(gigabytes / seconds(action, options.rounds), 2), "GB/s")
            for name, action in actions.items()
        ]
        ends = torch.randint(0, 1_000_000, (2, 20_000_000))
        folder = write_graph(
            path / "graph", {"n": NodeTable(1_000_000)}, {("n", "to", "n"): EdgeTable(ends[0], ends[1])}
        )
        opened = seconds(lambda: open_csc_graph(folder), options.rounds)
        figures.append(Figure("open a graph of 20 M edges", round(1000 * opened, 2), "ms"))
    report("digests", figures)


if __name__ == "__main__":
    main()
