"""Clusters of nodes as a column of a graph folder, for Cluster-GCN."""

from __future__ import annotations

import os
from pathlib import Path

from khop.arguments import column_name
from khop.graph.atomic import refuse_existing
from khop.graph.csc_graph import open_csc_graph
from khop.graph.damage import refuse_damage
from khop.graph.folder import open_folder
from khop.graph.progress import ProgressCallback
from khop.graph.save import save_graph
from khop.partition.partition import PartitionSettings, assigned_parts


def write_clusters(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    settings: PartitionSettings,
    column: str,
    *,
    threads: int = 1,
    notice: ProgressCallback | None = None,
) -> Path:
    """Write a graph folder with a further column of all node types; see `khop.cluster_graph`."""
    folder, target = open_folder(source), Path(out)
    column_name(column)
    columns = dict(folder.columns())
    for type_, of_type in columns.items():
        if column in of_type and not isinstance(type_, tuple):
            raise ValueError(f"column {column!r}: {type_!r} nodes have it already; give another name")
    refuse_existing(target)
    refuse_damage(folder, notice)
    graph = open_csc_graph(folder)
    _, _, assigned = assigned_parts(folder, graph, settings, threads, notice)
    for node_type, numbers in assigned.items():
        columns[node_type] = {**columns.get(node_type, {}), column: numbers}
    splits = {name: folder.split(name) for name in folder.split_names}
    return save_graph(target, graph, columns, splits, notice, origin=folder)
