"""Partitioning of a graph, clusters of nodes, and edges from random walks, for commands and scripts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from khop.api.open_graph import Graph, open_graph
from khop.arguments import column_name, instance_of, path_of, whole_number
from khop.data.partition.partition import PartitionSettings, write_clusters, write_parts
from khop.data.partition.partitioners import Partitioner
from khop.graph.atomic import ProgressCallback, refuse_existing
from khop.graph.build import save_graph
from khop.graph.features.store import Rows
from khop.graph.folder import refuse_damage
from khop.graph.partitions.book import PartitionBook
from khop.process_tuning import usable_cores
from khop.sampling.random_walks import Node2Vec, WalkCounts, walk_neighbors
from khop.sampling.seeds import ids_here
from khop.schema import EdgeType, NodeType, edge_type_of


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
    """Partition a graph folder into a new folder, which is written atomically.

    Nodes are renumbered so that the nodes of a part are consecutive within their type. The column
    "original_id" has the previous ids, and draws do not change. Edges are stored in the part of their
    destination, with their columns, in the original order of its row. The result depends neither on the
    machine nor on `threads`.

    Args:
        graph: The graph folder.
        out: The new folder.
        parts: Number of parts.
        method: "ldg" (default) and "fennel" stream over the edges, with memory proportional to the number
            of nodes. "metis" cuts fewer edges of small graphs, but keeps all edges in memory and needs
            pymetis. "random", "range" and "hash" ignore edges. A custom method is an object with `passes`
            and `assign`, or a kind "package.module:Class".
        balance: Quantities to balance: "nodes", "edges", "bytes", or a split. Default: nodes, and the
            split "train" if there is one.
        slack: Imbalance tolerance: share by which a part may exceed its equal share, default 0.05.
        seed: Seed of the partitioning, default 0.
        fanouts: Fanouts for which to estimate the share of remote nodes in a batch, which is recorded in
            the partition book; default none.
        batch_size: Training seeds per step over all parts, for this estimate; default 1024.
        method_options: Options that the class of the method declares, by name; default none.
        threads: Number of threads. 0 (default): one per core.
        notice: Function called with a text, the bytes done and the total bytes. Default None.
    Returns:
        The partition book: sizes of the parts, and the quality of the partitioning.
    Raises:
        ValueError: An argument does not fit the graph, or `out` exists.
    Example:
        >>> nodes = {"item": khop.NodeTable(4)}
        >>> edges = {"item to item": khop.EdgeTable(torch.arange(4), torch.arange(4))}
        >>> graph = khop.write_graph(tmp / "graph", nodes, edges)
        >>> khop.partition_graph(graph, tmp / "parts", parts=2, method="range").offsets
        {'item': (0, 2, 4)}
    """
    graph, out = path_of("graph", graph), path_of("out", out)
    threads = whole_number("threads", threads, 0)
    settings = PartitionSettings(
        parts, method, balance, slack, seed, tuple(fanouts), batch_size, method_options
    )
    return write_parts(graph, out, settings, threads=threads or usable_cores(), notice=notice)


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
    """Write a copy of a graph folder with a column of node clusters, for `khop.ClusterSampler`.

    Cluster numbers are int32. A partitioned copy of the folder has the same clusters. The result depends
    neither on the machine nor on `threads`.

    Args:
        graph: The graph folder.
        out: The new folder.
        clusters: Number of clusters.
        column: Name of the column, default "cluster".
        method: Method of `khop.partition_graph`, default "ldg".
        slack: Share by which a cluster may exceed its equal share of the nodes, default 0.1.
        seed: Seed of the partitioning, default 0.
        method_options: Options that the class of the method declares, by name; default none.
        threads: Number of threads. 0 (default): one per core.
        notice: Function called with a text, the bytes done and the total bytes. Default None.
    Returns:
        The path of the new folder.
    Raises:
        ValueError: An argument does not fit the graph, or `out` exists.
    Example:
        >>> nodes = {"item": khop.NodeTable(4)}
        >>> edges = {"item to item": khop.EdgeTable(torch.arange(4), torch.arange(4))}
        >>> graph = khop.write_graph(tmp / "graph", nodes, edges)
        >>> path = khop.cluster_graph(graph, tmp / "clustered", clusters=2, method="range")
        >>> khop.open_graph(path).columns["item"]["cluster"]
        tensor([0, 0, 1, 1], dtype=torch.int32)
    """
    graph, out = path_of("graph", graph), path_of("out", out)
    threads = whole_number("threads", threads, 0)
    clusters = whole_number("clusters", clusters, 1)
    balance = ("nodes",)
    settings = PartitionSettings(clusters, method, balance, slack, seed, method_options=method_options)
    return write_clusters(graph, out, settings, column, threads=threads or usable_cores(), notice=notice)


def clusters_of(graph: Graph, column: str = CLUSTER) -> dict[NodeType, Tensor]:
    """Return the cluster of every node from an integer column.

    Collective if the columns are partitioned across ranks.

    Args:
        graph: The graph.
        column: Column of clusters, default "cluster".
    Returns:
        Clusters, int64 (nodes) by node type, for `khop.ClusterSampler`.
    Raises:
        ValueError: Nodes of a type lack the column, or it is not one integer per node.
    Example:
        >>> nodes = {"item": khop.NodeTable(columns={"cluster": torch.tensor([0, 1, 1])})}
        >>> edges = {"item to item": khop.EdgeTable(torch.arange(3), torch.arange(3))}
        >>> graph = khop.open_graph(khop.write_graph(tmp / "graph", nodes, edges))
        >>> khop.clusters_of(graph)
        {'item': tensor([0, 1, 1])}
    """
    instance_of("graph", graph, Graph, "must be a khop.Graph, such as khop.open_graph returns")
    column_name(column)
    specs = {t: graph.schema.columns.get(t, {}).get(column) for t in graph.schema.node_types}
    for node_type, spec in specs.items():
        if spec is None:
            raise ValueError(
                f"column {column!r}: {node_type!r} nodes lack it; write it with khop.cluster_graph(graph, "
                "out, clusters), or name another column"
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


def walk_graph(
    path: Path,
    out: Path,
    walk: Sequence[str],
    relation: str,
    counts: WalkCounts,
    *,
    bias: Node2Vec | None = None,
    seed: int = 0,
    notice: ProgressCallback | None = None,
) -> EdgeType:
    """Write a copy of a graph folder with the edges of `khop.walk_neighbors`; return their edge type.

    `relation` is the name of its relation. The edges are computed in chunks while they are written.
    """
    refuse_existing(out)
    graph = open_graph(path)
    assert graph.folder is not None
    edges = walk_neighbors(graph, walk, counts, bias=bias, seed=seed)
    node_type = edge_type_of(walk[0])[2]
    edge_type = edge_type_of(f"{node_type} {relation} {node_type}")
    if edge_type in graph.schema.edge_types:
        raise ValueError(
            f"relation {relation!r}: {path} already has the edge type {' '.join(edge_type)}; give another "
            "name"
        )
    refuse_damage(graph.folder, notice)
    splits = {name: {t: ids_here(of) for t, of in graph.split(name).items()} for name in graph.split_names}
    topology = graph.in_one_piece("walks")
    save_graph(out, topology, graph.columns, splits, notice, origin=graph.folder, added={edge_type: edges})
    return edge_type
