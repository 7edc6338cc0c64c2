"""The raw folder of an OGB set with several node types: relations and columns in a folder per type."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from khop.graph.tables import EdgeChunks, EdgeTable, NodeTable
from khop.importing.sets.csv_table import csv_rows, csv_table
from khop.importing.sets.ogb_raw import Directions, csv_columns, csv_edges, only_count
from khop.importing.sets.scratch import Scratch
from khop.schema import EdgeType, NodeType


def typed_nodes(raw: Path, scratch: Scratch) -> dict[NodeType, NodeTable]:
    """Return the node types in alphabetical order, with their columns."""
    path = raw / "num-node-dict.csv.gz"
    counts = {node_type: int(values[0]) for node_type, values in sorted(csv_table(path).items())}
    folder = raw / "node-feat"
    return {t: NodeTable(n, dict(csv_columns(folder / t, "node", n, scratch))) for t, n in counts.items()}


def typed_edges(raw: Path, scratch: Scratch, directions: Directions) -> dict[EdgeType, EdgeChunks]:
    """Return the edge types in alphabetical order; with both directions, each with its rev_RELATION."""
    return {
        edge_type: EdgeChunks(
            edges_of(raw, edge_type, scratch),
            reverse=reverse_of(edge_type) if directions == "both directions" else None,
        )
        for edge_type in triplets(raw)
    }


def triplets(raw: Path) -> list[EdgeType]:
    """Return the edge types that triplet-type-list names, in alphabetical order."""
    path = raw / "triplet-type-list.csv.gz"
    rows = csv_rows(path)
    if any(len(row) != 3 for row in rows):
        raise ValueError(f"{path}: a row has {len(rows[0])} fields, and 3 are expected")
    return sorted((head, relation, tail) for head, relation, tail in rows)


def relation_folder(raw: Path, edge_type: EdgeType) -> Path:
    """Return the folder of an edge type."""
    return raw / "relations" / "___".join(edge_type)


def reverse_of(edge_type: EdgeType) -> EdgeType:
    """Return the name of the opposite edge type."""
    return (edge_type[2], f"rev_{edge_type[1]}", edge_type[0])


def edges_of(raw: Path, edge_type: EdgeType, scratch: Scratch) -> Iterator[EdgeTable]:
    """Yield the edges of a type."""
    folder = relation_folder(raw, edge_type)
    return csv_edges(folder, only_count(folder / "num-edge-list.csv.gz"), scratch, "as stored")
