"""Rows of later data as rows that are added to a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.graph.folder import GraphFolder
from khop.graph.inputs import Given
from khop.graph.later_nodes import joined_nodes, later_ids
from khop.kernels.id_table import Keys, keys_at
from khop.schema import EdgeType, NodeType

Array = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class AddedNodes:
    """New nodes of one type. They follow the nodes of the graph."""

    count: int
    columns: Mapping[str, Array] = field(default_factory=dict)  # without some: their values are unknown
    ids: Keys | None = None  # the users' ids


@dataclass(frozen=True, eq=False)
class AddedEdges:
    """New edges of one type. In a row they have the order of the arrays, after edges of the graph."""

    sources: Int64s  # nodes of the graph, or new ones
    destinations: Int64s
    positions: Int64s  # of the input: 0, 1, ... in any order
    columns: Mapping[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sources)


@dataclass(frozen=True, eq=False)
class AddedRows:
    """New nodes and edges of a graph, by type; types without new rows may be left out."""

    nodes: Mapping[NodeType, AddedNodes]
    edges: Mapping[EdgeType, AddedEdges]

    def without_edges_of(self, base: GraphFolder) -> tuple[AddedRows, list[str]]:
        """Return the rows without edges between nodes of a graph, and a note for each type that had some."""
        edges, notes = {}, []
        for edge_type, new in self.edges.items():
            first = base.num_nodes(edge_type[0]), base.num_nodes(edge_type[2])
            kept = np.flatnonzero((new.sources >= first[0]) | (new.destinations >= first[1]))
            if gone := len(new) - len(kept):
                notes.append(
                    f"{' '.join(edge_type)}: {gone:,} edges between nodes of the graph left out, as the same "
                    "tables were appended before"
                )
            edges[edge_type] = AddedEdges(
                new.sources[kept],
                new.destinations[kept],
                np.argsort(np.argsort(new.positions[kept])),
                {name: column[kept] for name, column in new.columns.items()},
            )
        return AddedRows(self.nodes, edges), notes

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of new nodes of a type."""
        return self.nodes[node_type].count if node_type in self.nodes else 0


def added_rows(base: GraphFolder, later: GraphFolder) -> AddedRows:
    """Return the rows of later data as rows to add to a graph, by their ids.

    ValueError for later data with other encoders, and for a table that repeats a node of the graph.
    """
    places = joined_nodes(base, later)
    columns = later.columns()
    nodes = {}
    for node_type, of_type in places.items():
        new = (of_type >= base.num_nodes(node_type)).nonzero().squeeze(1)
        chosen = {name: _array(column[new]) for name, column in columns.get(node_type, {}).items()}
        has_ids = bool(later.manifest.node(node_type).ids)
        ids = keys_at(later_ids(later, node_type), new.numpy()) if has_ids else None
        nodes[node_type] = AddedNodes(new.numel(), chosen, ids)
    edges = {}
    for edge_type in later.schema.edge_types:
        csc, order = later.csc(edge_type), later.edge_id(edge_type)
        csc.check()
        positions = torch.arange(csc.num_edges) if order is None else order.long()
        edges[edge_type] = AddedEdges(
            places[edge_type[0]][csc.indices.long()].numpy(),
            places[edge_type[2]][csc.destinations()].numpy(),
            positions.numpy(),
            {name: _array(column) for name, column in columns.get(edge_type, {}).items()},
        )
    return AddedRows(nodes, edges)


def _array(column: Tensor) -> Array:
    """Return a column as it is stored: bfloat16 as its bits."""
    return Given.of(column, "column").values
