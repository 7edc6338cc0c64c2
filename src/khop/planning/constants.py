"""Measured costs of the work of a run on one machine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Constants:
    """The costs of work on one core."""

    sample_ns: float  # per drawn edge, in a graph with MEASURED_EDGES edges
    gather_bytes_per_s: float  # of rows gathered by id
    train_flop_per_s: float  # operations of the matrix products of a training step / time of the entire step
    exchange_bytes_per_s: float  # bytes sent and received, per second of core time
    step_s: float  # fixed cost of a step: measured on two processes with one node each
    exchange_s: float  # fixed cost of a collective while a batch is made: measured on empty messages
    disk_reads_per_s: float  # random reads of a page
    disk_bytes_per_s: float  # of a file read from its beginning to its end


MEASURED_EDGES = 20_000_000  # edges of the graph that `measure` samples

# 2 cores of AMD EPYC, no other load: medians of three runs of `khop plan --measure --json`. The disk is an
# exception: single runs of benchmarks/larger_than_memory.py and of dd while the machine was busy.
MEASURED = Constants(
    sample_ns=10.1,
    gather_bytes_per_s=11.5e9,
    train_flop_per_s=78e9,
    exchange_bytes_per_s=1.6e9,
    step_s=11.6e-3,
    exchange_s=0.3e-3,
    disk_reads_per_s=46e3,
    disk_bytes_per_s=0.36e9,
)

# Pairs (edges of a graph, ns per drawn edge), on the same machine: `python benchmarks/scaling.py`. The cost
# is constant beyond the last pair, because there every access already misses the caches.
SCALING = ((1e5, 9.1), (1e6, 5.3), (3e6, 6.8), (1e7, 8.1), (3e7, 9.6), (1e8, 10.2), (3e8, 14.9))


def scaled_sample_ns(constants: Constants, edges: float) -> float:
    """Return the cost in ns per drawn edge, for a graph with this number of edges."""
    return constants.sample_ns * _curve(edges) / _curve(MEASURED_EDGES)


def _curve(edges: float) -> float:
    (first, cheapest), (last, dearest) = SCALING[0], SCALING[-1]
    if edges <= first:
        return cheapest
    for (low, below), (high, above) in pairwise(SCALING):
        if edges <= high:
            return below + (above - below) * math.log(edges / low) / math.log(high / low)
    assert edges > last
    return dearest
