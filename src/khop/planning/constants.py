"""What work costs on a machine, as it was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Constants:
    """Costs for one core."""

    sample_ns: float  # for a drawn edge of a graph of MEASURED_EDGES edges
    gather_bytes_per_s: float  # of rows, by id
    train_flop_per_s: float  # of a whole training step: what its matrix products count, over its time
    exchange_bytes_per_s: float  # sent and received, in seconds of a core
    step_s: float  # for a step of two processes on a node each: what one takes however small it is
    exchange_s: float  # for one collective of nothing, when a batch is made


MEASURED_EDGES = 20_000_000  # of the graph that `measure` draws from

# 2 cores of AMD EPYC, with nothing beside: medians of three runs of `khop plan --measure --json`.
MEASURED = Constants(
    sample_ns=10.1,
    gather_bytes_per_s=11.5e9,
    train_flop_per_s=78e9,
    exchange_bytes_per_s=1.6e9,
    step_s=11.6e-3,
    exchange_s=0.3e-3,
)

# Edges of a graph -> ns for a drawn edge, on the same machine: `python benchmarks/scaling.py`. Beyond the
# last it does not grow any more: every line is far away already.
SCALING = ((1e5, 9.1), (1e6, 5.3), (3e6, 6.8), (1e7, 8.1), (3e7, 9.6), (1e8, 10.2), (3e8, 14.9))


def scaled_sample_ns(constants: Constants, edges: float) -> float:
    """The cost of a drawn edge of a graph of so many edges."""
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
