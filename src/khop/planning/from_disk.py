"""Predicted training on one machine that reads the features from its disk."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from khop.planning.constants import Constants
from khop.planning.neighborhood import neighborhood
from khop.planning.prediction import predict
from khop.planning.workload import Cluster, GraphSize, Run

_PAGE = 4096
_PLANNED = 0.5  # share of the free memory for a cache that is planned by need; the rest is page cache


@dataclass(frozen=True)
class FromDisk:
    """A step on one machine with memory for the edges, but not for the features."""

    memory: float  # bytes of edges, batches and training
    cache: float  # bytes of memory beside these: half for rows that are needed most, half page cache
    nodes: float  # nodes of a batch
    read_rows: float  # rows of a batch that neither cache holds
    cold: float  # seconds of the disk for a batch while the caches are empty
    reading: float  # seconds of the disk for a batch
    step: float  # seconds: reading and the work of the cores overlap, and the slower one decides


def from_disk(
    graph: GraphSize, run: Run, cluster: Cluster, constants: Constants, memory_bytes: float
) -> FromDisk | None:
    """Predict one machine like those of `cluster`, with as many seeds; None if its memory lacks the edges.

    Rows on one page take one random read together; rows beyond a page also take the time of their bytes.
    """
    alone = replace(cluster, machines=1, cache_share=0.0)
    run = replace(run, batch_size=max(1, round(run.batch_size / cluster.machines)))
    whole = predict(graph, run, alone, constants)[0]
    taken = whole.memory.total - whole.memory.features
    room = memory_bytes - taken
    if room < 0:
        return None
    batch = neighborhood(graph, run.fanouts, run.batch_size, 1, None)
    planned = batch.here.most_likely(_PLANNED * room / max(1, graph.feature_bytes))
    features = max(1, graph.feature_bytes * graph.nodes)
    is_cached = min(1.0, (1 - _PLANNED) * room / features)
    rows = (batch.rows - planned) * (1 - is_cached) if graph.feature_bytes else 0.0
    pages = 1 + max(0, graph.feature_bytes - 1) / _PAGE  # that a row touches, wherever it begins
    row_s = max(1 / constants.disk_reads_per_s, pages * _PAGE / constants.disk_bytes_per_s)
    reading, cold = (_reads(count, graph) * row_s for count in (rows, batch.rows))
    return FromDisk(taken, room, batch.rows, rows, cold, reading, max(whole.times.step, reading))


def _reads(rows: float, graph: GraphSize) -> float:
    """Return the expected number of pages, or of longer rows, that hold some rows of random nodes."""
    per_page = max(1.0, _PAGE / max(1, graph.feature_bytes))
    share = min(1.0, rows / graph.nodes)
    return graph.nodes / per_page * (1 - math.pow(1 - share, per_page))
