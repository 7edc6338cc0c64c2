"""The input of a sampler, from `Data`, `HeteroData` or `(FeatureStore, GraphStore)`: edges by destination."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import FeatureStore, GraphStore

from khop.graph.csc_graph import CscGraph, column_specs
from khop.kernels.build_csc import build_csc
from khop.kernels.checks import check_ids
from khop.kernels.csc import Csc
from khop.pyg.inputs import check_edges, check_weights, check_whole_times
from khop.pyg.stores import Stored, stored
from khop.pyg.typed_data import EDGE, NODE, TypedData
from khop.schema import EdgeType, NodeType, Schema

Permutations = Mapping[EdgeType, Tensor | None]
_Columns = dict[NodeType | EdgeType, dict[str, Tensor]]


@dataclass(frozen=True)
class Attributes:
    """The attributes that a sampler draws by, and whether edges are already sorted."""

    time: str | None = None
    weight: str | None = None
    is_sorted: bool = False


@dataclass(frozen=True, eq=False)
class Source:
    """The edges of a PyG object as a graph store, and the mapping back to the positions of its edges."""

    graph: CscGraph
    permutations: Permutations  # int64 (edges), CSC position -> the object's edge; None: equal
    is_typed: bool  # true if the object has types; else they are NODE and EDGE
    node_times: Mapping[NodeType, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Any, attributes: Attributes = Attributes()) -> Source:
        """Make a source; ValueError for data that torch_geometric's loaders do not take."""
        typed = TypedData.of(data)
        if typed is not None:
            return _of_storages(typed, attributes)
        if isinstance(data, list | tuple) and len(data) == 2:
            features, graph = data
            if isinstance(features, FeatureStore) and isinstance(graph, GraphStore):
                return _of_stores(stored(features, graph, attributes.time, attributes.weight), attributes)
        raise ValueError(
            f"Expected a 'Data', 'HeteroData', or a tuple of 'FeatureStore' and 'GraphStore' "
            f"(got '{type(data)}')"
        )


def _of_storages(data: TypedData, attributes: Attributes) -> Source:
    nodes, edges = data.nodes, data.edges
    counts = {node_type: storage.num_nodes for node_type, storage in nodes.items()}
    check_edges(counts, edges)
    node_times, edge_times = _times(nodes, edges, attributes.time)
    weights = _weights(edges, attributes.weight)
    built: dict[EdgeType, Csc] = {}
    permutations: dict[EdgeType, Tensor | None] = {}
    columns: _Columns = {**{t: {} for t in nodes}, **{t: {} for t in edges}}
    for edge_type, storage in edges.items():
        limits = (counts[edge_type[0]], counts[edge_type[2]])
        if "adj_t" in storage:
            pointers, indices, _ = storage.adj_t.csr()
            built[edge_type], order = Csc(pointers.cpu(), indices.cpu()), None
        else:
            times = edge_times.get(edge_type)
            if times is None and edge_type[0] in node_times and "edge_index" in storage:
                times = node_times[edge_type[0]][storage.edge_index[0].cpu()]
            try:
                built[edge_type], order = _csc(storage, limits, times, is_sorted=attributes.is_sorted)
            except ValueError as error:
                raise ValueError(f"edge_index of {edge_type}: {error}") from error
        permutations[edge_type] = order
        named = {
            attributes.time: edge_times.get(edge_type),
            attributes.weight: weights.get(edge_type),
        }
        for name, column in named.items():
            if name is not None and column is not None:
                columns[edge_type][name] = column if order is None else column[order]
    for node_type, of_type in node_times.items():
        columns[node_type][str(attributes.time)] = of_type
    return _source(built, counts, permutations, columns, node_times, data.is_typed)


def _of_stores(given: Stored, attributes: Attributes) -> Source:
    """Make a source of stores, with sorted edges. A graph without types gets one type of each kind."""
    edge_types = {key: key or EDGE for key in given.edges}
    edges = {edge_types[key]: csc for key, csc in given.edges.items()}
    counts = {node_type or NODE: count for node_type, count in given.counts.items()}
    node_times = {node_type or NODE: times for node_type, times in given.node_times.items()}
    edge_times = {edge_type or EDGE: times for edge_type, times in given.edge_times.items()}
    columns: _Columns = {t: {str(attributes.time): times} for t, times in node_times.items()}
    columns.update({t: {str(attributes.time): times} for t, times in edge_times.items()})
    permutations = {edge_types[key]: given.permutations.get(key) for key in given.edges}
    return _source(edges, counts, permutations, columns, node_times, None not in given.edges)


def _source(
    edges: Mapping[EdgeType, Csc],
    counts: Mapping[NodeType, int],
    permutations: Permutations,
    columns: Mapping[NodeType | EdgeType, Mapping[str, Tensor]],
    node_times: Mapping[NodeType, Tensor],
    is_typed: bool,
) -> Source:
    schema = Schema(tuple(counts), tuple(edges), columns=column_specs(columns))
    graph = CscGraph(schema, counts, edges, columns=columns)
    return Source(graph, permutations, is_typed, node_times)


def _weights(edges: Mapping[EdgeType, Any], name: str | None) -> dict[EdgeType, Tensor]:
    if name is None:
        return {}
    weights = {t: storage[name].detach().cpu() for t, storage in edges.items() if name in storage}
    if not weights:
        raise ValueError(f"The weight attribute '{name}' is no edge-level attribute: no edges have it")
    for edge_type, of_type in weights.items():
        check_weights(name, edge_type, of_type, edges[edge_type].num_edges)
    return weights


def _times(
    nodes: Mapping[NodeType, Any], edges: Mapping[EdgeType, Any], name: str | None
) -> tuple[dict[NodeType, Tensor], dict[EdgeType, Tensor]]:
    """Return the times of nodes, or the times of edges."""
    if name is None:
        return {}, {}
    of_nodes = {t: s[name].cpu() for t, s in nodes.items() if name in s and s.is_node_attr(name)}
    of_edges = {t: s[name].cpu() for t, s in edges.items() if name in s and s.is_edge_attr(name)}
    if of_nodes and of_edges:
        raise ValueError(f"The time attribute '{name}' holds both node-level and edge-level information")
    if not of_nodes and not of_edges:
        raise ValueError(f"The time attribute '{name}' is neither a node-level or edge-level attribute")
    check_whole_times(name, {**of_nodes, **of_edges})
    return of_nodes, of_edges


def _csc(
    storage: Any, limits: tuple[int, int], times: Tensor | None, *, is_sorted: bool
) -> tuple[Csc, Tensor | None]:
    """Return the edges of a storage by destination; within a row by time, else in their own order."""
    edge_index = storage.edge_index if "edge_index" in storage else torch.empty(2, 0, dtype=torch.int64)
    sources, destinations = edge_index.as_subclass(Tensor).detach().cpu().contiguous()
    if is_sorted:
        return _sorted_csc(sources, destinations, *limits), None
    threads = torch.get_num_threads()
    if times is None:
        csc, order = build_csc(sources, destinations, *limits, threads=threads)
        already = bool((destinations[1:] >= destinations[:-1]).all())
        return csc, None if already else order
    earliest = times.argsort(stable=True)
    csc, order = build_csc(sources[earliest], destinations[earliest], *limits, threads=threads)
    return csc, earliest[order]


def _sorted_csc(sources: Tensor, destinations: Tensor, num_sources: int, num_destinations: int) -> Csc:
    """Make a CSC of sorted edges without a copy of the sources."""
    check_ids(sources, num_sources, "source")
    check_ids(destinations, num_destinations, "destination")
    falls = (destinations[1:] < destinations[:-1]).nonzero()
    if falls.numel():
        at = int(falls[0]) + 1
        raise ValueError(
            f"is_sorted, but edge {at} leads to node {int(destinations[at])} and the one before it to "
            f"{int(destinations[at - 1])}: sort edges by destination, or leave is_sorted out"
        )
    counts = torch.bincount(destinations, minlength=num_destinations)
    return Csc(torch.cat([counts.new_zeros(1), counts.cumsum(0)]), sources)
