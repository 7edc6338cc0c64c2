"""Additional edge types of a graph in memory."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from khop.graph.checks import checked_reverses
from khop.graph.csc_graph import CscGraph, csc_graph_from_edges
from khop.graph.inputs import Array, Given
from khop.graph.quantize import Quantized
from khop.graph.tables import EdgeTable
from khop.kernels.csc import Csc
from khop.schema import EdgeType, Schema, edge_type_of


def with_edges(graph: CscGraph, edges: Mapping[EdgeType, EdgeTable], threads: int = 1) -> CscGraph:
    """Return the graph, in memory, with additional edge types. Existing arrays are shared, not copied.

    ValueError if the edges of a `reverse_of` are not the same edges in the opposite direction.
    """
    for edge_type in edges:
        if edge_type in graph.edges:
            raise ValueError(
                f"edge type {edge_type}: the graph has it already, give the new one another name"
            )
    added = csc_graph_from_edges(
        graph.counts,
        {
            t: (torch.as_tensor(table.sources), torch.as_tensor(table.destinations))
            for t, table in edges.items()
        },
        threads,
        columns={
            t: {name: _column_tensor(t, name, column) for name, column in table.columns.items()}
            for t, table in edges.items()
        },
    )
    reverses = {t: edge_type_of(table.reverse_of) for t, table in edges.items() if table.reverse_of}
    _check_reverses(reverses, {**graph.edges, **added.edges})
    schema = Schema(
        graph.schema.node_types,
        (*graph.schema.edge_types, *edges),
        {**graph.schema.reverse_of, **reverses},
        {**graph.schema.columns, **added.schema.columns},
    )
    return CscGraph(
        schema,
        graph.counts,
        {**graph.edges, **added.edges},
        graph.originals,
        {**graph.columns, **added.columns},
        bounds=graph.bounds,
    )


def _check_reverses(claimed: Mapping[EdgeType, EdgeType], edges: Mapping[EdgeType, Csc]) -> None:
    """Raise ValueError for a wrong reverse: links would be removed from messages in one direction only."""
    for edge_type, reverse in claimed.items():
        if reverse not in edges:
            raise ValueError(
                f"edge type {edge_type}: reverse_of {reverse}: no such edge type; there are {list(edges)}"
            )
    checked_reverses(claimed, {t: _given_ends(edges[t]) for t in {*claimed, *claimed.values()}})


def _given_ends(csc: Csc) -> tuple[Given, Given]:
    return Given.of(csc.indices, "sources"), Given.of(csc.destinations(), "destinations")


def _column_tensor(edge_type: EdgeType, name: str, column: Array | Quantized) -> Tensor:
    """Return a column of an EdgeTable; ValueError if a graph in memory cannot hold it."""
    where = f"edge type {edge_type}: column {name!r}"
    if isinstance(column, Quantized):
        raise ValueError(f"{where} is quantized: give it as numbers, or write the graph by khop.write_graph")
    Given.of(column, where)  # raises ValueError with the reason
    return torch.as_tensor(column)
