"""Graphs in memory from arrays of edges and columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from khop.api.open_graph import Graph
from khop.features.table import FeatureTable
from khop.graph.csc_graph import CscGraph, column_specs
from khop.kernels.build_csc import build_csc
from khop.kernels.csc import Csc
from khop.schema import EdgeType, NodeType, Schema

NODE: NodeType = "node"
EDGE: EdgeType = (NODE, "to", NODE)


@dataclass(frozen=True, eq=False)
class MemoryEdges:
    """Edges of one type, in any order."""

    sources: Tensor  # int64 (edges)
    destinations: Tensor  # int64 (edges)
    columns: Mapping[str, Tensor] = field(default_factory=dict)  # (edges, ...)


def memory_graph(
    counts: Mapping[NodeType, int],
    edges: Mapping[EdgeType, MemoryEdges],
    columns: Mapping[NodeType, Mapping[str, Tensor]],
    *,
    splits: Mapping[str, Mapping[NodeType, Tensor]] | None = None,
    reverse_of: Mapping[EdgeType, EdgeType] | None = None,
) -> Graph:
    """Make a graph. Edges with the same destination keep their order; ValueError for ids that no node has."""
    built: dict[EdgeType, Csc] = {}
    given: dict[NodeType | EdgeType, dict[str, Tensor]] = {t: dict(columns.get(t, {})) for t in counts}
    for edge_type, of_type in edges.items():
        limits = (counts[edge_type[0]], counts[edge_type[2]])
        threads = torch.get_num_threads()
        built[edge_type], order = build_csc(of_type.sources, of_type.destinations, *limits, threads=threads)
        given[edge_type] = {name: column[order] for name, column in of_type.columns.items()}
    specs = column_specs(given)
    schema = Schema(tuple(counts), tuple(built), columns=specs, reverse_of=dict(reverse_of or {}))
    return Graph(CscGraph(schema, counts, built, columns=given), FeatureTable(given), splits=splits or {})
