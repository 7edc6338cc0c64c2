"""The edges of a `(FeatureStore, GraphStore)`: fetched once, by destination."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor
from torch_geometric.data import FeatureStore, GraphStore, remote_backend_utils
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout

from khop.kernels.csc import Csc
from khop.schema import EdgeType, NodeType


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
    """Fetch all but the features. For weights NotImplementedError, as in torch_geometric.

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
    of_nodes, of_edges = _times(features, time_attr, is_typed)
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


def _times(
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
