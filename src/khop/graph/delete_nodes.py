"""A graph folder without some nodes: the folder that the other rows would give."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.graph import layout
from khop.graph.append_rows import check_appendable
from khop.graph.build import write_graph
from khop.graph.damage import refuse_damage
from khop.graph.documents import documents_of
from khop.graph.folder import GraphFolder, open_folder
from khop.graph.manifest import EdgeEntry, NodeEntry, read_manifest
from khop.graph.node_ids import ids_in, stored_ids
from khop.graph.progress import ProgressCallback
from khop.graph.row_order import INPUT
from khop.graph.snapshots import Snapshot, publish_snapshot, snapshot_folder, snapshot_record
from khop.graph.sparse_column import SparseColumn
from khop.graph.tables import EdgeTable, NodeTable
from khop.kernels.id_table import Keys, keys_at
from khop.schema import EdgeType, NodeType

Int64s = npt.NDArray[np.int64]


def delete_nodes(
    base: GraphFolder,
    deleted: Mapping[NodeType, Int64s],
    out: Path,
    *,
    memory: int | None = None,
    threads: int = 1,
    notice: ProgressCallback | None = None,
) -> dict[EdgeType, int]:
    """Write a graph without some nodes and their edges; return the number of deleted edges by type.

    Other nodes keep their order and get the next numbers. The folder has the same bits as one written from
    the remaining rows. The remaining nodes and edges of all types are in memory.
    """
    check_appendable(base)
    refuse_damage(base, notice)
    kept = {node.type: np.ones(node.count, bool) for node in base.manifest.nodes}
    for node_type, gone in deleted.items():
        kept[node_type][gone] = False
    ids = stored_ids(base)
    columns = base.columns()
    nodes = {
        node.type: _nodes(base, node, kept[node.type], columns[node.type], ids.get(node.type))
        for node in base.manifest.nodes
    }
    edges = {edge.type: _edges(base, edge, kept, columns[edge.type]) for edge in base.manifest.edges}
    write_graph(
        out, nodes, edges, sort_by=_sorted_by(base), threads=threads, memory=memory,
        documents=documents_of(base.path, base.documents), notice=notice,
    )  # fmt: skip
    return {
        edge.type: edge.count - len(table.sources)
        for edge, table in zip(base.manifest.edges, edges.values(), strict=True)
        if edge.count > len(table.sources)
    }


def delete_ids(
    graph: Path,
    base: GraphFolder,
    delete: Mapping[NodeType, Sequence[Any]],
    memory: int,
    threads: int,
    notice: ProgressCallback | None,
) -> tuple[Path, Snapshot, tuple[str, ...]]:
    """Delete nodes by the users' ids, as a new snapshot; return its folder, the snapshot and notes.

    `base` is the newest snapshot. Ids that earlier snapshots alone have are deleted already. ValueError for
    other unknown ids.
    """
    rows, notes = {}, list[str]()
    record = snapshot_record(graph)
    earlier = [snapshot_folder(graph, one) for one in record.snapshots]
    for node_type, ids in delete.items():
        own = ids_in(base.path, base.arrays, node_type, base.num_nodes(node_type))
        found = own.rows(ids)
        rows[node_type] = np.unique(found[found >= 0])
        missing = [id_ for id_, row in zip(ids, found.tolist(), strict=True) if row < 0]
        unknown = _never_there(earlier, node_type, missing)
        if unknown:
            raise ValueError(
                f"delete: no {node_type} has the id {unknown[0]!r}; {len(unknown)} of {len(ids)} ids are "
                "unknown, leave them out"
            )
        if missing:
            notes.append(f"{node_type}: {len(missing):,} of {len(ids):,} ids are already deleted")
    nodes = {node_type: -len(of_type) for node_type, of_type in rows.items() if len(of_type)}
    if not nodes:
        notes = ["nothing to do: all ids are already deleted"] if notes else ["nothing to do: no ids"]
        return base.path, Snapshot(base.fingerprint), tuple(notes)
    out = graph / layout.SNAPSHOTS / ".deleting"
    out.parent.mkdir(exist_ok=True)
    for killed in (out, *out.parent.glob(f".{out.name}.*")):  # of a process that was killed
        shutil.rmtree(killed, ignore_errors=True)
    gone = delete_nodes(base, rows, out, memory=memory, threads=threads, notice=notice)
    edges = {" ".join(edge_type): -count for edge_type, count in gone.items()}
    snapshot = Snapshot(read_manifest(out)[1], nodes, edges)
    left = tuple(tables.without(rows) for tables in record.appended)
    target = publish_snapshot(graph, out, snapshot, base.fingerprint, left)
    return target, snapshot, tuple(notes)


def _never_there(snapshots: Sequence[Path], node_type: NodeType, ids: Sequence[Any]) -> list[Any]:
    """Return the ids that no snapshot has."""
    for folder in reversed(snapshots):
        if not ids:
            break
        of_earlier = open_folder(folder)
        own = ids_in(folder, of_earlier.arrays, node_type, of_earlier.num_nodes(node_type))
        ids = [id_ for id_, row in zip(ids, own.rows(list(ids)).tolist(), strict=True) if row < 0]
    return list(ids)


def _nodes(
    base: GraphFolder,
    node: NodeEntry,
    kept: npt.NDArray[np.bool_],
    columns: Mapping[str, Tensor],
    ids: Keys | None,
) -> NodeTable:
    rows, number = np.flatnonzero(kept), np.cumsum(kept) - 1
    splits = {name: base.split(name)[node.type].numpy() for name in node.splits}
    left = {name: number[split[kept[split]]] for name, split in splits.items()}
    return NodeTable(
        len(rows),
        {name: _kept(column, rows, node.sparse.get(name)) for name, column in columns.items()},
        {name: nodes for name, nodes in left.items() if len(nodes)},
        node.num_classes,
        None if ids is None else keys_at(ids, rows),
        unknown=[
            name for name, column in columns.items() if column.is_floating_point() and column.dim() == 1
        ],
    )


def _kept(column: Tensor, rows: npt.NDArray[np.int64], sparse_width: int | None) -> Tensor | SparseColumn:
    kept = column[torch.from_numpy(rows)]
    return kept if sparse_width is None else SparseColumn(kept, sparse_width)


def _edges(
    base: GraphFolder,
    edge: EdgeEntry,
    kept: Mapping[NodeType, npt.NDArray[np.bool_]],
    columns: Mapping[str, Tensor],
) -> EdgeTable:
    """Return the remaining edges in the order of the input."""
    csc, edge_id = base.csc(edge.type), base.edge_id(edge.type)
    csc.check()
    sources, destinations = csc.indices.long(), csc.destinations()
    if edge_id is not None:
        order = torch.empty_like(destinations)
        order[edge_id.long()] = torch.arange(csc.num_edges)
        sources, destinations = sources[order], destinations[order]
        columns = {name: column[order] for name, column in columns.items()}
    source, _, destination = edge.type
    chosen = torch.from_numpy(kept[source][sources.numpy()] & kept[destination][destinations.numpy()])
    numbers = {end: torch.from_numpy(np.cumsum(kept[end]) - 1) for end in (source, destination)}
    return EdgeTable(
        numbers[source][sources[chosen]],
        numbers[destination][destinations[chosen]],
        {name: column[chosen] for name, column in columns.items()},
        edge.reverse_of,
    )


def _sorted_by(base: GraphFolder) -> str | None:
    orders = {edge.row_order for edge in base.manifest.edges} - {INPUT}
    if len(orders) > 1:
        raise ValueError(
            f"{base.path}: rows follow {sorted(orders)}; sort it by one column, khop graph sort, and "
            "delete then"
        )
    return next(iter(orders), None)
