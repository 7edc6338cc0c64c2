"""Edges of a `Data`, a `HeteroData` or a `(FeatureStore, GraphStore)`, by destination, in any direction.

Edges of stores are fetched once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch_geometric.data import FeatureStore, GraphStore, remote_backend_utils
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout
from torch_geometric.sampler import HeteroSamplerOutput

from khop.batch import Sample
from khop.graph.store import CscGraph, column_specs
from khop.kernels.csc import Csc, build_csc, check_ids
from khop.pyg.inputs import check_edges, check_weights, check_whole_times
from khop.pyg.outputs import (
    DATA_KINDS,
    EDGE,
    NODE,
    TypedData,
    edge_pairs,
    original_ids,
    owner_of,
    sampler_output,
    storages,
    with_row_per_seed,
)
from khop.schema import EdgeType, NodeType, Schema


@dataclass(frozen=True, eq=False)
class Stored:
    """The data of stores that a sampler needs. In a graph without types, the only type is None."""

    edges: Mapping[EdgeType | None, Csc]
    counts: Mapping[NodeType | None, int]
    permutations: Mapping[EdgeType | None, Tensor | None]
    node_times: Mapping[NodeType | None, Tensor]
    edge_times: Mapping[EdgeType | None, Tensor]


def stored(
    features: FeatureStore, graph: GraphStore, time_attr: str | None, weight_attr: str | None
) -> Stored:
    """Fetch all data except features. Raises NotImplementedError for weights, as torch_geometric does.

    Features are fetched per batch.
    """
    if weight_attr is not None:
        raise NotImplementedError(
            "'weight_attr' argument not yet supported within 'NeighborSampler' for "
            "'(FeatureStore, GraphStore)' inputs"
        )
    attributes = graph.get_all_edge_attrs()
    if time_attr is not None:
        _check_order(attributes)
    rows, pointers, permutations = graph.csc()
    is_typed = {attribute.edge_type for attribute in attributes} != {None}
    if not is_typed:
        rows, pointers, permutations = {None: rows}, {None: pointers}, {None: permutations}
    edges = {t: Csc(pointers[t].contiguous(), rows[t].contiguous()) for t in rows}
    counts: Mapping[NodeType | None, int] = {None: max(attributes[0].size)} if not is_typed else {}
    counts = counts or _counts(features, graph, edges)
    of_nodes, of_edges = _stored_times(features, time_attr, is_typed)
    return Stored(edges, counts, permutations or {}, of_nodes, of_edges)


def _counts(
    features: FeatureStore, graph: GraphStore, edges: Mapping[EdgeType | None, Csc]
) -> dict[NodeType | None, int]:
    named = [attribute.group_name for attribute in features.get_all_tensor_attrs()]
    ends = [end for edge_type in edges if edge_type is not None for end in (edge_type[0], edge_type[2])]
    node_types = dict.fromkeys([*(name for name in named if isinstance(name, str)), *ends])
    return {t: remote_backend_utils.num_nodes(features, graph, t) for t in node_types}


def _check_order(attributes: Iterable[EdgeAttr]) -> None:
    for attribute in attributes:
        if attribute.layout == EdgeLayout.CSR:
            raise ValueError("Temporal sampling requires that edges are stored in either COO or CSC layout")
        if not attribute.is_sorted:
            raise ValueError(
                "Temporal sampling requires that edges are sorted by destination, and by source time "
                "within local neighborhoods"
            )


def _stored_times(
    features: FeatureStore, name: str | None, is_typed: bool
) -> tuple[dict[NodeType | None, Tensor], dict[EdgeType | None, Tensor]]:
    """Return the times of nodes, or of edges. In a graph without types, "time" belongs to the nodes."""
    if name is None:
        return {}, {}
    found: dict[NodeType | EdgeType | None, Tensor] = {}
    for attribute in features.get_all_tensor_attrs():
        if attribute.attr_name == name:
            attribute.index = None
            found[attribute.group_name] = features.get_tensor(attribute)
    if not found:
        raise ValueError("Temporal sampling specified but did not find any temporal data")
    if not is_typed:
        (times,) = found.values()
        return ({None: times}, {}) if name == "time" else ({}, {None: times})
    of_nodes: dict[NodeType | None, Tensor] = {t: v for t, v in found.items() if isinstance(t, str)}
    of_edges: dict[EdgeType | None, Tensor] = {t: v for t, v in found.items() if isinstance(t, tuple)}
    if of_nodes and of_edges:
        raise ValueError(f"Found time attribute '{name}' for both node-level and edge-level types")
    return of_nodes, of_edges


Permutations = Mapping[EdgeType, Tensor | None]
_Columns = dict[NodeType | EdgeType, dict[str, Tensor]]


@dataclass(frozen=True)
class Attributes:
    """The attributes that a sampler uses, and whether edges are already sorted."""

    time: str | None = None
    weight: str | None = None
    is_sorted: bool = False


@dataclass(frozen=True, eq=False)
class EdgeSource:
    """The edges of a PyG object as a graph store, and the mapping back to the positions of its edges."""

    graph: CscGraph
    permutations: Permutations  # int64 (edges), CSC position -> the object's edge; None: equal
    is_typed: bool  # true if the object has types; else they are NODE and EDGE
    node_times: Mapping[NodeType, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Any, attributes: Attributes = Attributes()) -> EdgeSource:
        """Make a source; ValueError for data that torch_geometric's loaders do not accept."""
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


def _of_storages(data: TypedData, attributes: Attributes) -> EdgeSource:
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


def _of_stores(given: Stored, attributes: Attributes) -> EdgeSource:
    """Make a source from stores, with sorted edges. A graph without types gets a node and an edge type."""
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
) -> EdgeSource:
    schema = Schema(tuple(counts), tuple(edges), columns=column_specs(columns))
    graph = CscGraph(schema, counts, edges, columns=columns)
    return EdgeSource(graph, permutations, is_typed, node_times)


def _weights(edges: Mapping[EdgeType, Any], name: str | None) -> dict[EdgeType, Tensor]:
    if name is None:
        return {}
    weights = {t: storage[name].detach().cpu() for t, storage in edges.items() if name in storage}
    if not weights:
        raise ValueError(f"The weight attribute '{name}' is not an edge-level attribute: no edges have it")
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
    """Return the edges of a storage by destination; within a row, by time or else in the input order."""
    edge_index = storage.edge_index if "edge_index" in storage else torch.empty(2, 0, dtype=torch.int64)
    sources, destinations = edge_index.as_subclass(Tensor).detach().cpu().contiguous()
    if is_sorted:
        return _sorted_csc(sources, destinations, limits, times), None
    return _built(sources, destinations, limits, times)


def _built(
    sources: Tensor, destinations: Tensor, limits: tuple[int, int], times: Tensor | None
) -> tuple[Csc, Tensor | None]:
    threads = torch.get_num_threads()
    if times is None:
        csc, order = build_csc(sources, destinations, *limits, threads=threads)
        already = bool((destinations[1:] >= destinations[:-1]).all())
        return csc, None if already else order
    earliest = times.argsort(stable=True)
    csc, order = build_csc(sources[earliest], destinations[earliest], *limits, threads=threads)
    return csc, earliest[order]


def _sorted_csc(sources: Tensor, destinations: Tensor, limits: tuple[int, int], times: Tensor | None) -> Csc:
    """Make a CSC of sorted edges without a copy of the sources."""
    check_ids(sources, limits[0], "source")
    check_ids(destinations, limits[1], "destination")
    falls = (destinations[1:] < destinations[:-1]).nonzero()
    if falls.numel():
        at = int(falls[0]) + 1
        raise ValueError(
            f"is_sorted is set, but the destination of edge {at} is {int(destinations[at])}, after "
            f"{int(destinations[at - 1])}: sort edges by destination, or leave is_sorted out"
        )
    if times is not None:
        falls = ((destinations[1:] == destinations[:-1]) & (times[1:] < times[:-1])).nonzero()
        if falls.numel():
            at = int(falls[0]) + 1
            raise ValueError(
                f"is_sorted is set, but the time of edge {at} is {int(times[at])}, after "
                f"{int(times[at - 1])}: sort edges by destination and then by time, or leave is_sorted out"
            )
    counts = torch.bincount(destinations, minlength=limits[1])
    return Csc(torch.cat([counts.new_zeros(1), counts.cumsum(0)]), sources)


class Direction(StrEnum):
    """The direction in which hops follow edges."""

    FORWARD = "forward"  # in-neighbors: messages flow to the seeds
    BACKWARD = "backward"  # out-neighbors: messages flow from the seeds
    BOTH = "both"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ValueError(f"sample_direction {value!r}: must be 'forward' or 'backward'")


@dataclass(frozen=True, eq=False)
class Directed:
    """Edges to sample, some of them reversed, and the mapping back to the data's edges."""

    source: EdgeSource  # with the sampled edge types
    data_types: Mapping[EdgeType, EdgeType]  # sampled type -> type in the data
    turned: frozenset[EdgeType]  # the sampled types that are reversed
    direction: Direction

    @classmethod
    def of(cls, data: Any, attributes: Attributes, direction: Direction) -> Directed:
        """Make the edges to sample; ValueError for data that torch_geometric's samplers do not accept."""
        if direction is Direction.FORWARD:
            source = EdgeSource.of(data, attributes)
            return cls(source, {t: t for t in source.graph.schema.edge_types}, frozenset(), direction)
        if isinstance(data, DATA_KINDS):
            back = EdgeSource.of(_turned(data), attributes)
        else:
            back = _turned_stores(EdgeSource.of(data, attributes), attributes)
        data_types = {t: t[::-1] if back.is_typed else t for t in back.graph.schema.edge_types}
        if direction is Direction.BACKWARD:
            return cls(back, data_types, frozenset(data_types), direction)
        forward = EdgeSource.of(data, attributes)
        renamed = {t: (t[0], f"{t[1]} (turned)", t[2]) for t in data_types}
        types = {t: t for t in forward.graph.schema.edge_types}
        both = _joined(forward, back, renamed)
        back_types = {renamed[t]: data_type for t, data_type in data_types.items()}
        return cls(both, {**types, **back_types}, frozenset(back_types), direction)

    @property
    def permutations(self) -> Mapping[EdgeType, Tensor | None]:
        """Maps from the ids of an output's edges to the data's edges, by the data's types."""
        if self.direction is Direction.BOTH:
            return dict.fromkeys(self.data_types.values())  # outputs already have the data's ids
        return {self.data_types[t]: order for t, order in self.source.permutations.items()}

    def sampled_pairs(self, pairs: Mapping[EdgeType, Tensor]) -> dict[EdgeType, Tensor]:
        """Convert ends (2, pairs) by the data's types to ends by sampled types, in their direction."""
        return {
            sampled: pairs[t].flip(0) if sampled in self.turned else pairs[t]
            for sampled, t in self.data_types.items()
            if t in pairs
        }

    def output(self, sample: Sample) -> HeteroSamplerOutput:
        """Convert a sample to an output with the data's edges."""
        if self.direction is Direction.BOTH:
            return self.merged(sample)
        output = sampler_output(sample, self.source.graph.schema)
        if self.direction is Direction.BACKWARD:
            output.row, output.col = output.col, output.row
            for name in ("row", "col", "edge", "num_sampled_edges"):
                by_type = getattr(output, name)
                if by_type is not None:
                    setattr(output, name, {self.data_types[t]: value for t, value in by_type.items()})
        return output

    def merged(self, sample: Sample) -> HeteroSamplerOutput:
        """Merge a sample of both directions: every edge once, by hop, with the data's edge id."""
        sample = with_row_per_seed(sample)
        assert sample.subgraph is not None
        per_hop = sample.subgraph.edges_per_hop
        pieces: dict[EdgeType, list[_Drawn]] = {t: [] for t in self.data_types.values()}
        for sampled, t in self.data_types.items():
            adjacency = sample.subgraph.adjacencies.get(sampled)
            if adjacency is None:
                continue
            pairs = edge_pairs(adjacency)
            counts = (pairs.shape[1],) if per_hop is None else per_hop.get(sampled, ())
            hops = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts, dtype=torch.int64))
            ids = original_ids(adjacency.edge_ids, self.source.permutations[sampled])
            pieces[t].append(_Drawn(pairs.flip(0) if sampled in self.turned else pairs, ids, hops))
        num_hops = 0 if per_hop is None else max((len(counts) for counts in per_hop.values()), default=0)
        edges = {t: _once(drawn) for t, drawn in pieces.items()}
        nodes_per_hop = sample.subgraph.nodes_per_hop
        return HeteroSamplerOutput(
            node=dict(sample.nodes),
            row={t: of_type.pairs[0] for t, of_type in edges.items()},
            col={t: of_type.pairs[1] for t, of_type in edges.items()},
            edge={t: of_type.ids for t, of_type in edges.items()},
            batch=None if sample.trees is None else dict(sample.trees),
            num_sampled_nodes=None if per_hop is None else {t: [*n] for t, n in nodes_per_hop.items()},
            num_sampled_edges=None
            if per_hop is None
            else {t: torch.bincount(e.hops, minlength=num_hops).tolist() for t, e in edges.items()},
        )


@dataclass(frozen=True)
class _Drawn:
    """Drawn edges of one of the data's types, in the data's direction."""

    pairs: Tensor  # int64 (2, edges), local ids
    ids: Tensor  # int64 (edges), the data's edge ids
    hops: Tensor  # int64 (edges)


def _once(drawn: list[_Drawn]) -> _Drawn:
    """Order edges of both directions by hop, forward edges first, without duplicates between two rows."""
    nothing = torch.empty(0, dtype=torch.int64)
    if not drawn:
        return _Drawn(nothing.view(2, 0), nothing, nothing)
    pairs = torch.cat([piece.pairs for piece in drawn], dim=1)
    ids, hops = (torch.cat([getattr(piece, name) for piece in drawn]) for name in ("ids", "hops"))
    order = hops.argsort(stable=True)
    # With the rows: a seed that occurs twice has two rows, and a node has a row in every tree.
    keys = torch.cat([pairs, ids.unsqueeze(0)]).T[order]
    unique, inverse = torch.unique(keys, dim=0, return_inverse=True)
    first = torch.full((unique.shape[0],), order.numel())
    first.scatter_reduce_(0, inverse, torch.arange(order.numel()), "amin")
    kept = order[first.sort().values]
    return _Drawn(pairs[:, kept], ids[kept], hops[kept])


def _turned(data: Any) -> Any:
    """Return the same data with all edges and edge types reversed."""
    turned = copy.copy(data)
    for owner, storage in storages(data):
        if "adj_t" in storage:
            raise ValueError("adj_t: backward sampling needs edge_index; leave ToSparseTensor out")
        if isinstance(owner, tuple):
            del turned[owner]
        else:  # counted before the edges are reversed, because the count may be inferred from them
            owner_of(turned, owner).num_nodes = storage.num_nodes
    for owner, storage in storages(data):
        target = owner_of(turned, owner[::-1] if isinstance(owner, tuple) else owner)
        for name, value in storage.items():
            target[name] = value.flip(0) if name == "edge_index" else value
    return turned


def _turned_stores(source: EdgeSource, attributes: Attributes) -> EdgeSource:
    """Return the source of stores with all edges and edge types reversed."""
    graph = source.graph
    edges: dict[EdgeType, Csc] = {}
    permutations: dict[EdgeType, Tensor | None] = {}
    columns: _Columns = {t: dict(graph.columns.get(t, {})) for t in graph.schema.node_types}
    for edge_type, csc in graph.edges.items():
        turned = edge_type[::-1]
        rows = torch.arange(csc.num_rows, dtype=csc.indices.dtype)
        destinations = torch.repeat_interleave(rows, csc.indptr.diff())
        of_edges = graph.columns.get(edge_type, {})
        times = of_edges.get(str(attributes.time))
        if times is None and edge_type[2] in source.node_times:
            times = source.node_times[edge_type[2]][destinations]
        limits = (graph.num_nodes(edge_type[2]), graph.num_nodes(edge_type[0]))
        edges[turned], order = _built(destinations, csc.indices, limits, times)
        first = source.permutations[edge_type]
        permutations[turned] = order if first is None else first if order is None else first[order]
        columns[turned] = {n: column if order is None else column[order] for n, column in of_edges.items()}
    return _source(edges, graph.counts, permutations, columns, source.node_times, source.is_typed)


def _joined(forward: EdgeSource, back: EdgeSource, renamed: Mapping[EdgeType, EdgeType]) -> EdgeSource:
    """Join the edge types of two graphs into one graph. `renamed` has the new names of `back`'s types."""
    graph, other = forward.graph, back.graph
    columns: dict[NodeType | EdgeType, Mapping[str, Tensor]] = dict(graph.columns)
    columns |= {renamed[t]: other.columns.get(t, {}) for t in renamed}
    edges = {**graph.edges, **{renamed[t]: other.edges[t] for t in renamed}}
    schema = Schema(graph.schema.node_types, tuple(edges), columns=column_specs(columns))
    orders = {**forward.permutations, **{renamed[t]: back.permutations[t] for t in renamed}}
    joined = CscGraph(schema, graph.counts, edges, columns=columns)
    return EdgeSource(joined, orders, forward.is_typed, forward.node_times)
