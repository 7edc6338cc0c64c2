"""Edges of the Illinois Graph Benchmark: a folder per edge type, rows of source and destination."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from khop.graph.tables import EdgeChunks, EdgeTable
from khop.importing.sets.npy_array import npy_array
from khop.schema import EdgeType, NodeType

_EDGES_AT_ONCE = 1 << 20


def igb_edges(folder: Path, node_types: Collection[NodeType]) -> dict[EdgeType, EdgeChunks]:
    """Return the edge types between node types, in alphabetical order, each with its rev_RELATION."""
    found: dict[EdgeType, EdgeChunks] = {}
    for path in sorted(folder.glob("*__*__*/edge_index.npy")):
        source, relation, destination = path.parent.name.split("__")
        if {source, destination} <= set(node_types):
            reverse = (destination, f"rev_{relation}", source)
            found[source, relation, destination] = EdgeChunks(_chunks(path), reverse)
    if not found:
        raise ValueError(
            f"{folder}: has no SOURCE__RELATION__DESTINATION/edge_index.npy; give another folder"
        )
    return found


def _chunks(path: Path) -> Iterator[EdgeTable]:
    pairs = npy_array(path)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise ValueError(f"{path}: has shape {pairs.shape}, and (edges, 2) is expected; download it again")
    for first in range(0, max(1, len(pairs)), _EDGES_AT_ONCE):
        part = pairs[first : first + _EDGES_AT_ONCE]
        yield EdgeTable(part[:, 0].copy(), part[:, 1].copy())
