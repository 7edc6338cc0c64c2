"""A graph whose edges lie in this process, in memory or mapped from a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from khop.draw import DrawKey, Frontier, FrontierByType, Hop, Neighbors, NeighborsByType, Uniform, stream
from khop.graph.build import EdgeTable
from khop.graph.folder import GraphFolder, open_folder
from khop.kernels.build_csc import build_csc
from khop.kernels.csc import Csc
from khop.kernels.memory import expect_random_access
from khop.kernels.sample_uniform import sample_uniform
from khop.schema import ColumnSpec, EdgeType, NodeType, Schema

Columns = Mapping[NodeType | EdgeType, Mapping[str, Tensor]]


@dataclass(frozen=True, eq=False)
class CscGraph:
    """A graph store over CSC arrays. Threads may share it; sampling runs without the GIL.

    `original_ids`, of node types that were renumbered, are what draws are keyed by: renumbering changes
    no draw. `columns` are those that rules may name; the schema lists them. Pickles as `path` where it has
    one.
    """

    schema: Schema
    counts: Mapping[NodeType, int]
    edges: Mapping[EdgeType, Csc]
    original_ids: Mapping[NodeType, Tensor] = field(default_factory=dict)  # int64 (nodes)
    columns: Columns = field(default_factory=dict)  # one row per node, or per edge in CSC order
    path: Path | None = None  # of the folder it maps

    def __post_init__(self) -> None:
        for edge_type in self.schema.edge_types:
            if edge_type not in self.edges:
                raise ValueError(
                    f"edge type {edge_type}: has no edges; there are those of {list(self.edges)}"
                )
            rows, nodes = self.edges[edge_type].num_rows, self.num_nodes(edge_type[2])
            if rows != nodes:
                raise ValueError(f"edge type {edge_type}: {rows:,} rows for {nodes:,} {edge_type[2]!r} nodes")

    @classmethod
    def open(cls, folder: GraphFolder | str | os.PathLike[str]) -> CscGraph:
        """The graph of a folder, mapped: it opens at once, and the edges are read in the background."""
        if not isinstance(folder, GraphFolder):
            folder = open_folder(folder)
        edges = {edge_type: folder.csc(edge_type) for edge_type in folder.schema.edge_types}
        for csc in edges.values():
            expect_random_access(csc.indptr)
            expect_random_access(csc.indices)
        originals = {node_type: folder.original_ids(node_type) for node_type in folder.schema.node_types}
        return cls(
            schema=folder.schema,
            counts={node_type: folder.num_nodes(node_type) for node_type in folder.schema.node_types},
            edges=edges,
            original_ids={node_type: ids for node_type, ids in originals.items() if ids is not None},
            columns=folder.columns(),
            path=folder.path,
        )

    def num_nodes(self, node_type: NodeType) -> int:
        """How many nodes of a type there are."""
        if node_type not in self.counts:
            raise ValueError(f"no node type {node_type!r}; there are {list(self.counts)}")
        return self.counts[node_type]

    def csc(self, edge_type: EdgeType) -> Csc:
        """The edges of a type by destination."""
        if edge_type not in self.edges:
            raise ValueError(f"no edge type {edge_type!r}; there are {list(self.edges)}")
        return self.edges[edge_type]

    def with_edges(self, edges: Mapping[EdgeType, EdgeTable], threads: int = 1) -> CscGraph:
        """The same graph, in memory, with further edge types; what it had is shared and not copied."""
        for edge_type in edges:
            if edge_type in self.edges:
                raise ValueError(
                    f"edge type {edge_type}: the graph has it already, give the new one another name"
                )
        added = csc_graph_from_edges(
            self.counts,
            {
                t: (torch.as_tensor(table.sources), torch.as_tensor(table.destinations))
                for t, table in edges.items()
            },
            threads,
            columns={
                t: {name: torch.as_tensor(column) for name, column in table.columns.items()}
                for t, table in edges.items()
            },
        )
        reverses = {t: table.reverse_of for t, table in edges.items() if table.reverse_of is not None}
        schema = Schema(
            self.schema.node_types,
            (*self.schema.edge_types, *edges),
            {**self.schema.reverse_of, **reverses},
            {**self.schema.columns, **added.schema.columns},
        )
        return CscGraph(
            schema,
            self.counts,
            {**self.edges, **added.edges},
            self.original_ids,
            {**self.columns, **added.columns},
        )

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw in-edges of every frontier node; see GraphStore."""
        for edge_type in hop.fanouts:
            if edge_type not in self.edges:
                raise ValueError(f"no edge type {edge_type!r}; there are {list(self.edges)}")
        return {
            edge_type: self._drawn(edge_type, frontier[edge_type[2]], hop, key)
            for edge_type in hop.fanouts
            if edge_type[2] in frontier
        }

    def _drawn(self, edge_type: EdgeType, frontier: Frontier, hop: Hop, key: DrawKey) -> Neighbors:
        if not isinstance(hop.rule, Uniform):
            raise ValueError(f"{edge_type}: {hop.rule}: this graph store draws uniformly only")
        if frontier.until is not None:
            raise ValueError(f"{edge_type}: the frontier has time limits, which {hop.rule} does not know")
        try:
            return sample_uniform(
                self.edges[edge_type],
                frontier.nodes,
                hop.fanouts[edge_type],
                hop.rule,
                key,
                stream(hop.number, edge_type),
                original_ids=self.original_ids.get(edge_type[2]),
                tree=frontier.tree,
                edge_ids=hop.edge_ids,
                threads=hop.threads,
            )
        except ValueError as error:
            raise ValueError(f"edge type {edge_type}: {error}") from error

    def __reduce__(self) -> tuple[Callable[..., CscGraph], tuple[object, ...]]:
        if self.path is not None:
            return CscGraph.open, (self.path.absolute(),)
        return CscGraph, (self.schema, self.counts, self.edges, self.original_ids, self.columns)


def csc_graph_from_edges(
    counts: Mapping[NodeType, int],
    edges: Mapping[EdgeType, tuple[Tensor, Tensor]],
    threads: int = 1,
    *,
    columns: Columns = MappingProxyType({}),
) -> CscGraph:
    """A graph in memory from `(sources, destinations)` per edge type; rows keep the order of the edges.

    `columns` are those that rules may name: one row per node, or per edge in the order of `edges`.
    """
    schema = Schema(tuple(counts), tuple(edges))
    built: dict[EdgeType, Csc] = {}
    ordered = {type_: dict(of_type) for type_, of_type in columns.items()}
    for edge_type, ends in edges.items():
        built[edge_type], order = build_csc(
            *ends, counts[edge_type[0]], counts[edge_type[2]], threads=threads
        )
        for name, column in columns.get(edge_type, {}).items():
            ordered[edge_type][name] = column[order]
    return CscGraph(replace(schema, columns=_specs(ordered)), counts, built, columns=ordered)


def _specs(columns: Columns) -> dict[NodeType | EdgeType, dict[str, ColumnSpec]]:
    return {
        type_: {
            name: ColumnSpec(str(column.dtype).removeprefix("torch."), tuple(column.shape[1:]))
            for name, column in of_type.items()
        }
        for type_, of_type in columns.items()
    }
