"""Graphs in memory, made from edges and columns, or from graphs of SciPy, NetworkX and DGL."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from khop.api.open_graph import Graph
from khop.graph.features.table import FeatureTable
from khop.graph.inputs import splits_of_masks
from khop.graph.networkx_tables import NetworkxTables, entries
from khop.graph.store import CscGraph, column_specs
from khop.kernels.csc import Csc, build_csc
from khop.schema import EdgeType, NodeType, Schema, by_edge_type

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
    """Make a graph. Edges with the same destination keep their order. ValueError for invalid node ids."""
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


WEIGHT = "weight"


def graph_from_scipy(matrices: Any | Mapping[EdgeType, Any] | Mapping[str, Any]) -> Graph:  # noqa: ANN401
    """Make a graph in memory from a sparse matrix, or from matrices by edge type.

    The entry in row i and column j is an edge from i to j; its value is the edge column `weight`. Weights
    are float32. If float32 would change one from 2**24 on, integers are int64 and floats float64. Stored
    zeros are edges. `graph.save` writes a graph folder.

    Args:
        matrices: A square matrix, for the types "node" and ("node", "to", "node"), or matrices by edge
            type.
    Returns:
        The graph.
    Raises:
        ValueError: A matrix is not a sparse matrix of SciPy, or sizes or values do not fit.
    Example:
        >>> import scipy.sparse
        >>> graph = khop.graph_from_scipy(scipy.sparse.eye_array(3))
        >>> graph.num_edges("node to node")
        3
    """
    by_type = by_edge_type(matrices) if isinstance(matrices, Mapping) else {EDGE: matrices}
    counts: dict[NodeType, int] = {}
    edges: dict[EdgeType, MemoryEdges] = {}
    for edge_type, matrix in by_type.items():
        if not hasattr(matrix, "tocoo") or len(getattr(matrix, "shape", ())) != 2:
            raise ValueError(
                f"matrix {matrix!r} of {edge_type}: must be a sparse matrix of SciPy, such as "
                "scipy.sparse.csr_array"
            )
        for node_type, count in zip((edge_type[0], edge_type[2]), matrix.shape, strict=True):
            if counts.setdefault(node_type, int(count)) != count:
                raise ValueError(
                    f"matrix of {edge_type} has shape {matrix.shape}, but there are {counts[node_type]:,} "
                    f"{node_type!r} nodes; give matrices of matching sizes"
                )
        edges[edge_type] = _edges(matrix.tocoo(), edge_type)
    return memory_graph(counts, edges, {})


def _edges(matrix: Any, edge_type: EdgeType) -> MemoryEdges:  # noqa: ANN401
    values = np.ascontiguousarray(matrix.data)
    if values.dtype.kind not in "iufb" or not np.isfinite(values).all():
        raise ValueError(f"matrix of {edge_type} has {values.dtype} values: must be finite numbers")
    ends = [torch.from_numpy(np.asarray(end).astype(np.int64)) for end in (matrix.row, matrix.col)]
    return MemoryEdges(ends[0], ends[1], {WEIGHT: torch.from_numpy(entries(values))})


def graph_from_networkx(graph: Any) -> Graph:  # noqa: ANN401
    """Make a graph in memory, with the types "node" and ("node", "to", "node").

    Node i is the i-th of `graph.nodes`. Numeric attributes become columns, and so do lists of numbers that
    have the same length on all nodes or all edges. Integers are int64. Floats are float32, or float64 if
    float32 would change a number from 2**24 on that is not in a list. A missing number of a node becomes NaN.
    A missing number of an edge becomes 1 in `weight`, and 0 in other columns, which then get a column
    NAME_missing. `graph.save` writes a graph folder.

    Args:
        graph: A `networkx.Graph`, `DiGraph`, `MultiGraph` or `MultiDiGraph`. Edges of an undirected graph
            become edges in both directions.
    Returns:
        The graph. A warning names the attributes with missing values, and those that are left out.
    Raises:
        ValueError: `graph` is not a NetworkX graph.
    Example:
        >>> import networkx
        >>> graph = khop.graph_from_networkx(networkx.path_graph(4))
        >>> graph.num_nodes("node"), graph.num_edges("node to node")
        (4, 6)
    """
    if not all(hasattr(graph, name) for name in ("nodes", "edges", "is_directed")):
        raise ValueError(f"graph {graph!r}: must be a NetworkX graph")
    read = NetworkxTables.of(graph)
    for note in read.notes:
        warnings.warn(note, stacklevel=2)
    sources, destinations, columns = read.sources, read.destinations, read.edge_columns
    is_symmetric = not graph.is_directed()
    if is_symmetric:
        other = sources != destinations
        columns = {name: np.concatenate([column, column[other]]) for name, column in columns.items()}
        sources, destinations = (
            np.concatenate([sources, destinations[other]]),
            np.concatenate([destinations, sources[other]]),
        )
    edges = MemoryEdges(
        torch.from_numpy(sources),
        torch.from_numpy(destinations),
        {name: torch.from_numpy(column) for name, column in columns.items()},
    )
    nodes = {name: torch.from_numpy(column) for name, column in read.node_columns.items()}
    reverses = {EDGE: EDGE} if is_symmetric else {}
    return memory_graph({NODE: len(read.ids)}, {EDGE: edges}, {NODE: nodes}, reverse_of=reverses)


_MASK = "_mask"
_MEMBERS = ("ntypes", "canonical_etypes", "num_nodes", "edges", "nodes")


def graph_from_dgl(graph: Any) -> Graph:  # noqa: ANN401
    """Make a graph in memory from a DGLGraph, with its node and edge types.

    A homogeneous graph gets the types "node" and ("node", "to", "node"). Node and edge data become columns.
    Boolean node data named `<split>_mask` become splits; an empty mask is left out, with a warning.
    `graph.save` writes a graph folder.

    Args:
        graph: A `dgl.DGLGraph`.
    Returns:
        The graph.
    Raises:
        ValueError: `graph` is not a DGLGraph.
    Example:
        >>> def loader_of(dgl_graph):
        ...     graph = khop.graph_from_dgl(dgl_graph)
        ...     sampler = khop.NeighborSampler(graph, [10, 5])
        ...     return khop.Loader(sampler, graph.split("train"), batch_size=1024)
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
