"""How much memory does a loader pass hold beyond the mapped files, and a sampler thread beyond its outputs?

Products-like graph, [15,10,5], layered expansion, batch 1024, two sampler threads, four batches in flight,
float32 features. The loader's figure is the peak of anonymous memory, also less (in flight + 1) batches; the
sampler's, what a thread that has sampled holds when everything it returned is gone and the shared pool of
buffers is empty. PyG's recorded pass: 3.5 GB.

usage: python benchmarks/memory.py [--graph products] [--batches 20]
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from common_arguments import parsed
from harness import Figure, report

sys.path.insert(0, str(Path(__file__).parent / "contenders"))

import khop_contender
from answering import PeakMemory, anonymous_mib

import khop._core as core
from khop.batch import num_bytes
from khop.draw import DrawKey, Purpose

MIB = 2**20
SETTINGS = {"batch_size": 1024, "fanouts": [15, 10, 5]}
IN_FLIGHT = 4


def loader_pass(graph: str, batches: int) -> list[Figure]:
    """The peak of one pass, and what a batch of it holds."""
    settings = {**SETTINGS, "graph": graph}
    opened = khop_contender.opened(settings)
    largest = 0
    with PeakMemory() as peak:
        passing = khop_contender.loader_of(opened, settings).epoch(0)
        for batch in itertools.islice(passing, batches):
            largest = max(largest, num_bytes(batch))
            del batch
        passing.close()
    in_batches = (IN_FLIGHT + 1) * largest / MIB
    return [
        Figure("one batch", round(largest / MIB, 1), "MiB"),
        Figure("loader pass, peak beyond the mapped files", round(peak.mib, 1), "MiB"),
        Figure("the same, less (in flight + 1) batches", round(peak.mib - in_batches, 1), "MiB"),
    ]


def sampler_thread(graph: str) -> Figure:
    """What the first sample of a thread leaves behind: the table of local ids and its lists."""
    settings = {**SETTINGS, "graph": graph}
    opened = khop_contender.opened(settings)
    sampler = khop_contender.sampler_of(opened, settings)
    seeds = [khop_contender.seeds_of(opened, settings, step) for step in range(2)]
    keys = [DrawKey.of(0, Purpose.HOP, 0, step) for step in range(2)]
    # Another sampler of the same graph has torch and the pool set up by then.
    khop_contender.sampler_of(opened, settings).sample(seeds[0], keys[0])
    core.set_buffer_pool_limit(0)
    before = anonymous_mib()
    sampler.sample(seeds[1], keys[1])
    after = anonymous_mib()
    core.set_buffer_pool_limit(1 << 30)
    return Figure("sampler memory per thread beyond outputs", round(after - before, 1), "MiB")


def main() -> None:
    arguments = parsed(__doc__)
    thread = sampler_thread(arguments.graph)
    report("memory", [thread, *loader_pass(arguments.graph, arguments.batches)])


if __name__ == "__main__":
    main()
