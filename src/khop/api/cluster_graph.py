"""Clusters of nodes: written as a column by the partitioner, and read for a sampler."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from khop.api.open_graph import Graph
from khop.arguments import column_name, instance_of, path_of, whole_number
from khop.features.store import Rows
from khop.graph.progress import ProgressCallback
from khop.loading.cores import usable_cores
from khop.partition.balance import Partitioner
from khop.partition.clusters import write_clusters
from khop.partition.partition import PartitionSettings
from khop.schema import EdgeType, NodeType

CLUSTER = "cluster"


def cluster_graph(
    graph: str | os.PathLike[str],
    out: str | os.PathLike[str],
    clusters: int,
    *,
    column: str = CLUSTER,
    method: str | Partitioner = "ldg",
    slack: float = 0.1,
    seed: int = 0,
    method_options: Mapping[str, object] = MappingProxyType({}),
    threads: int = 0,
    notice: ProgressCallback | None = None,
) -> Path:
    """Write a copy of a graph folder whose nodes have their cluster, a number below `clusters`, as a column.

    Clusters are made by a partitioning method of `khop.partition_graph`; "metis" cuts the fewest edges. A
    cluster has at most 1 + `slack` times an equal share of the nodes. `khop.ClusterSampler` trains on them.
    Numbers are int32, by original id, so a partitioned graph of the folder has the same clusters. The result
    depends neither on the machine nor on `threads` (0: one per core).
    """
    graph, out = path_of("graph", graph), path_of("out", out)
    threads = whole_number("threads", threads, 0)
    whole_number("clusters", clusters, 1)
    balance = ("nodes",)
    settings = PartitionSettings(clusters, method, balance, slack, seed, method_options=method_options)
    return write_clusters(graph, out, settings, column, threads=threads or usable_cores(), notice=notice)


def clusters_of(graph: Graph, column: str = CLUSTER) -> dict[NodeType, Tensor]:
    """Return the cluster of every node, int64 (nodes) by type, from a column of whole numbers.

    Collective if the columns are partitioned across ranks.
    """
    instance_of("graph", graph, Graph, "must be a khop.Graph, as khop.open_graph gives it")
    column_name(column)
    specs = {t: graph.schema.columns.get(t, {}).get(column) for t in graph.schema.node_types}
    for node_type, spec in specs.items():
        if spec is None:
            raise ValueError(
                f"column {column!r}: {node_type!r} nodes lack it; write it by khop.cluster_graph(graph, out, "
                "clusters), or name another column"
            )
        if "int" not in spec.dtype or spec.shape:
            raise ValueError(
                f"column {column!r} of {node_type!r}: {spec.dtype} of shape {spec.shape}, must be one whole "
                "number per node; name a column of clusters"
            )
    types = graph.schema.node_types
    wanted: dict[NodeType | EdgeType, Rows] = {
        t: Rows(torch.arange(graph.num_nodes(t)), (column,)) for t in types
    }
    gathered = graph.features.gather(wanted)
    return {t: gathered[t][column].long() for t in types}
