"""Which numbers of sampler threads, batches ahead and compute threads train fastest on this machine?

Loader alone and training step, [15,10,5], batch 1024, over all combinations; `default` is what khop takes
when nothing is said. Rounds take turns; a figure is the median. The last figure is the default over the best.

usage: python benchmarks/threads.py [--graph products] [--rounds 3] [--batches 12]
"""

from __future__ import annotations

import itertools
import os
from statistics import median
from typing import Any

from common_arguments import parsed
from harness import Answer, Figure, contenders, report

DEFAULT = "default"


def choices() -> dict[str, dict[str, Any]]:
    """Names and settings of the combinations, the default first."""
    cores = len(os.sched_getaffinity(0))
    numbers = sorted({1, max(1, cores // 2), cores})
    named = {
        f"{threads} sampler threads, {prefetch} ahead, {compute} compute threads": {
            "threads": threads,
            "prefetch": prefetch,
            "compute_threads": compute,
        }
        for threads, prefetch, compute in itertools.product(numbers, (2, 4), numbers)
    }
    return {DEFAULT: {}, **named}


def main() -> None:
    arguments = parsed(__doc__)
    base = {
        "graph": arguments.graph,
        "batch_size": 1024,
        "batches": arguments.batches,
        "fanouts": [15, 10, 5],
    }
    figures = []
    for task, what in (("loader", "loader"), ("train_step", "training step")):
        answers: dict[str, list[Answer]] = {}
        for number, (name, choice) in itertools.product(range(arguments.rounds), choices().items()):
            # A process of its own each: torch keeps what its threads were told.
            (khop,) = contenders([])
            answers.setdefault(name, []).append(khop.run(task, {**base, **choice, "round": number}))
            khop.close()
        values = {name: median(a["value"] for a in of_name) for name, of_name in answers.items()}
        figures += [Figure(f"{what}: {name}", round(value, 2), "ms/batch") for name, value in values.items()]
        share = values[DEFAULT] / min(values.values())
        figures.append(Figure(f"{what}: default over the best of the sweep", round(share, 3), "x"))
    report("threads", figures)


if __name__ == "__main__":
    main()
