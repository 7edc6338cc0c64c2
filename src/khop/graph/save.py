"""Write a graph of this process as a graph folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from khop.graph.build import write_graph
from khop.graph.csc_graph import Columns, CscGraph
from khop.graph.documents import documents_of
from khop.graph.folder import Folder
from khop.graph.node_ids import stored_ids
from khop.graph.progress import ProgressCallback
from khop.graph.quantize import Quantized
from khop.graph.sparse_column import SparseColumn
from khop.graph.tables import EdgeChunks, EdgeTable, NodeTable
from khop.kernels.id_table import Keys
from khop.schema import ColumnSpec, EdgeType, NodeType

Splits = Mapping[str, Mapping[NodeType, Tensor]]


def save_graph(
    path: str | os.PathLike[str],
    graph: CscGraph,
    columns: Columns,
    splits: Splits,
    notice: ProgressCallback | None,
    sort_by: str | None = None,
    origin: Folder | None = None,
    added: Mapping[EdgeType, EdgeChunks] = MappingProxyType({}),
) -> Path:
    """Write a graph, its columns and its splits as a folder, and return the path.

    Rows keep their order unless `sort_by` names a column of times to sort by. `origin` is the folder that the
    arrays are mapped from, which must be sound (`refuse_damage`). The ids of its nodes and its documents,
    such as the cut-offs of an import, are kept. `added` are edges of further types.
    """
    ids = {} if origin is None else stored_ids(origin)
    documents = {} if origin is None else documents_of(origin.path, origin.documents)
    nodes = {
        node_type: _node_table(graph, node_type, columns, splits, ids.get(node_type))
        for node_type in graph.schema.node_types
    }
    own = {edge_type: _edge_table(graph, edge_type, columns) for edge_type in graph.schema.edge_types}
    edges: dict[EdgeType, EdgeTable | EdgeChunks] = {**own, **added}
    return write_graph(path, nodes, edges, sort_by=sort_by, documents=documents, notice=notice)


def _node_table(
    graph: CscGraph, node_type: NodeType, columns: Columns, splits: Splits, ids: Keys | None
) -> NodeTable:
    specs = graph.schema.columns.get(node_type, {})
    return NodeTable(
        graph.num_nodes(node_type),
        {name: _sparse(column, specs.get(name)) for name, column in columns.get(node_type, {}).items()},
        {name: of_split[node_type] for name, of_split in splits.items() if node_type in of_split},
        {name: spec.num_classes for name, spec in specs.items() if spec.num_classes is not None},
        ids,
        [name for name, spec in specs.items() if "float" in spec.dtype and not spec.shape],  # maybe labels
    )


def _edge_table(graph: CscGraph, edge_type: EdgeType, columns: Columns) -> EdgeTable:
    csc = graph.csc(edge_type)
    csc.check()
    destinations = csc.destinations()
    given = _given(columns.get(edge_type, {}), graph.schema.columns.get(edge_type, {}))
    sources = csc.indices.long() if csc.indices.dtype != destinations.dtype else csc.indices
    return EdgeTable(sources, destinations, given, graph.schema.reverse_of.get(edge_type))


def _given(columns: Mapping[str, Tensor], specs: Mapping[str, ColumnSpec]) -> dict[str, Tensor | Quantized]:
    """Return columns as `write_graph` takes them."""
    return {name: _quantized(column, specs.get(name)) for name, column in columns.items()}


def _sparse(column: Tensor, spec: ColumnSpec | None) -> Tensor | Quantized | SparseColumn:
    if spec is None or spec.sparse_width is None:
        return _quantized(column, spec)
    return SparseColumn(column, spec.sparse_width)


def _quantized(column: Tensor, spec: ColumnSpec | None) -> Tensor | Quantized:
    if spec is None or spec.scales is None:
        return column
    return Quantized(column, torch.tensor(spec.scales, dtype=torch.float32).view(spec.shape))
