"""Graph partitioning, as used by `khop partition` and by scripts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from khop.arguments import path_of, whole_number
from khop.graph.progress import ProgressCallback
from khop.loading.cores import usable_cores
from khop.partition.balance import Partitioner
from khop.partition.book import PartitionBook
from khop.partition.partition import PartitionSettings, write_parts


def partition_graph(
    graph: str | os.PathLike[str],
    out: str | os.PathLike[str],
    parts: int,
    *,
    method: str | Partitioner = "ldg",
    balance: Sequence[str] | None = None,
    slack: float = 0.05,
    seed: int = 0,
    fanouts: Sequence[int] = (),
    batch_size: int = 1024,
    method_options: Mapping[str, object] = MappingProxyType({}),
    threads: int = 0,
    notice: ProgressCallback | None = None,
) -> PartitionBook:
    """Write a partitioned graph from a graph folder. It appears complete or not at all.

    Nodes are renumbered so that the nodes of a part are consecutive within their type. Their column
    "original_id" holds the previous ids, and draws do not change. Edges are stored with their destination, in
    the order of its row, with their columns.

    `method`: "ldg" and "fennel" stream over the edges, in memory that grows only with the number of nodes.
    "metis" cuts fewer edges, holds all of them in memory and needs pymetis. "random", "range" and "hash"
    ignore edges. A method of your own is given as a value with `passes` and `assign`, or by its kind
    "package.module:Class"; `method_options` are the options that this class declares.

    `balance` names the quantities to balance: "nodes", "edges", "bytes", or a split. No part may hold more
    than 1 + `slack` times its share of each. None balances nodes, and the split "train" if there is one.

    With `fanouts`, the partition book also gives the expected share of remote nodes in a batch, for batches
    of `batch_size` training seeds over all parts. The result depends neither on the machine nor on `threads`
    (0: one per core).
    """
    graph, out = path_of("graph", graph), path_of("out", out)
    threads = whole_number("threads", threads, 0)
    settings = PartitionSettings(
        parts, method, balance, slack, seed, tuple(fanouts), batch_size, method_options
    )
    return write_parts(graph, out, settings, threads=threads or usable_cores(), notice=notice)
