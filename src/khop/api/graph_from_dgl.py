"""Graphs in memory from graphs of DGL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from khop.api.memory_graph import EDGE, NODE, MemoryEdges, memory_graph
from khop.api.open_graph import Graph
from khop.graph.checks import splits_of_masks
from khop.schema import EdgeType, NodeType

_MASK = "_mask"
_MEMBERS = ("ntypes", "canonical_etypes", "num_nodes", "edges", "nodes")


def graph_from_dgl(graph: Any) -> Graph:  # noqa: ANN401
    """Make a graph in memory of a DGLGraph, with its node and edge types.

    A graph of one type has the types "node" and ("node", "to", "node"). Data of nodes and edges become
    columns. Boolean node data named `<split>_mask` become splits; one that marks no node is left out, with a
    warning. `graph.save` writes a graph folder.
    """
    if not all(hasattr(graph, name) for name in _MEMBERS):
        raise ValueError(f"graph {graph!r}: must be a DGLGraph")
    is_single = len(graph.ntypes) == len(graph.canonical_etypes) == 1
    counts: dict[NodeType, int] = {}
    columns: dict[NodeType, dict[str, Tensor]] = {}
    splits: dict[str, dict[NodeType, Tensor]] = {}
    for given in graph.ntypes:
        node_type = NODE if is_single else given
        counts[node_type] = int(graph.num_nodes(given))
        columns[node_type] = {}
        for name, column in _tensors(graph.nodes[given].data).items():
            if name.endswith(_MASK) and column.dtype == torch.bool and column.dim() == 1:
                splits_of_masks({name.removesuffix(_MASK): column}, node_type, splits)
            else:
                columns[node_type][name] = column
    edges: dict[EdgeType, MemoryEdges] = {}
    for given in graph.canonical_etypes:
        sources, destinations = graph.edges(etype=given)
        data = _tensors(graph.edges[given].data)
        edge_type = EDGE if is_single else given
        edges[edge_type] = MemoryEdges(sources.cpu().long(), destinations.cpu().long(), data)
    return memory_graph(counts, edges, columns, splits=splits)


def _tensors(data: Mapping[Any, Any]) -> dict[str, Tensor]:
    return {str(name): value.detach().cpu() for name, value in data.items() if isinstance(value, Tensor)}
