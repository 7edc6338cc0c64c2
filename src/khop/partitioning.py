"""Cutting a graph into parts: what `khop partition` and a script of one's own call."""

from __future__ import annotations

import os
from collections.abc import Sequence

from khop.arguments import path_of, whole_number
from khop.graph.progress import ProgressCallback
from khop.loading.cores import usable_cores
from khop.partition.book import PartitionBook as PartitionBook
from khop.partition.partition import METHODS as METHODS
from khop.partition.partition import PartitionSettings, write_parts
from khop.partition.verify import verify_partition as verify_partition


def partition_graph(
    graph: str | os.PathLike[str],
    out: str | os.PathLike[str],
    parts: int,
    *,
    method: str = "ldg",
    balance: Sequence[str] | None = None,
    slack: float = 0.05,
    seed: int = 0,
    fanouts: Sequence[int] = (),
    batch_size: int = 1024,
    threads: int = 0,
    notice: ProgressCallback | None = None,
) -> PartitionBook:
    """Cut a graph folder into a folder of parts, which appears whole or not at all.

    Nodes are renumbered so that those of a part are consecutive within their type; their column "original_id"
    says what they were, and draws stay what they were. Edges lie with their destination, in the order that
    its row had, with their columns. `method`: "ldg" and "fennel" stream over the edges, in memory that grows
    with the nodes alone; "metis" cuts fewer edges, holds all of them in memory and needs pymetis; "random",
    "range" and "hash" see no edges. `balance` names what no part may hold more of than 1 + `slack` times its
    share: "nodes", "edges", "bytes", or a split; None is the nodes, and the split "train" where there is
    one. With `fanouts`, the book also says what share of a batch's nodes is to be expected remote, for
    batches of `batch_size` training seeds over all parts. The result depends on neither the machine nor
    `threads` (0: one per core).
    """
    graph, out = path_of("graph", graph), path_of("out", out)
    threads = whole_number("threads", threads, 0)
    settings = PartitionSettings(parts, method, balance, slack, seed, tuple(fanouts), batch_size)
    return write_parts(graph, out, settings, threads=threads or usable_cores(), notice=notice)
