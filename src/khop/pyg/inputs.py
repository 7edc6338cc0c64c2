"""Checks of a loader's arguments for which torch_geometric has a bare assertion or no check."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from khop.graph.inputs import described, tensor_of
from khop.pyg.outputs import DATA_KINDS, EDGE, NODE, TypedData, owner_of, storages
from khop.sampling.seeds import check_ids, seed_values
from khop.schema import EdgeType, NodeType


def tensors_of(what: str, given: Any) -> Any:
    """Return values, or values by type, as tensors; None and tensors are returned unchanged."""
    if isinstance(given, Mapping):
        return {type_: tensors_of(f"{what} of {type_!r}", values) for type_, values in given.items()}
    return given if given is None or isinstance(given, Tensor) else tensor_of(what, given)


def with_tensors(data: Any, *attributes: str | None) -> Any:
    """Return the data with `edge_index` and the named attributes as tensors.

    Arrays, lists and Series are replaced in a shallow copy, in which other Series become arrays. Stores and
    data with only tensors are returned unchanged.
    """
    if not isinstance(data, DATA_KINDS):
        return data
    made = data
    for owner, storage in storages(data):
        for name, value in list(storage.items()):
            if value is None or isinstance(value, Tensor):
                continue
            what = name if owner is None else f"{name} of {owner!r}"
            found: Any
            if name == "edge_index":
                found = _signed(tensor_of(what, value))
            elif name in attributes:
                found = tensor_of(what, value)
            elif isinstance(value, np.ndarray) or not hasattr(value, "__array__"):
                continue
            else:  # a Series is sliced with the batch
                found = np.asarray(value)
            made = copy.copy(data) if made is data else made
            owner_of(made, owner)[name] = found
    return made


def _signed(ends: Tensor) -> Tensor:
    """Return unsigned ids as int64, because torch cannot compare unsigned numbers."""
    return ends.long() if ends.dtype in (torch.uint16, torch.uint32, torch.uint64) else ends


def checked_nodes(data: Any, given: Any, times: Tensor | None) -> Any:
    """Return input nodes with ids or a mask as a tensor, in a form that torch_geometric's loaders accept.

    Raises ValueError for invalid nodes. For stores, ids are checked when they are sampled.
    """
    typed = TypedData.of(data)
    if typed is None:
        return _nodes_of_stores(given)
    node_type, ids = _typed_nodes(typed, given)
    count = typed.nodes[node_type].num_nodes
    if isinstance(ids, str) or (isinstance(ids, tuple | list) and any(isinstance(i, str) for i in ids)):
        if typed.is_typed:
            raise ValueError(f"input_nodes of {node_type!r} is {_described(ids)}: give ids, a mask or None")
        raise ValueError(
            f"input_nodes is {_described(ids)}: the nodes of a Data have no types; give ids or a mask"
        )
    nodes = None if ids is None else seed_values("input_nodes", ids, count)
    num_inputs = count
    if nodes is not None:
        num_inputs = int(nodes.sum()) if nodes.dtype == torch.bool else nodes.numel()
    _check_times("input_time", times, num_inputs)
    return (node_type, nodes) if typed.is_typed else nodes


def _nodes_of_stores(given: Any) -> Any:
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], str):
        node_type, ids = given
        return node_type, None if ids is None else seed_values("input_nodes", ids, None)
    return seed_values("input_nodes", given, None)


def links_with_tensors(given: Any) -> Any:
    """Return links, or (type, links), as tensors; a single edge type is returned unchanged."""
    if given is None or _holds_names(given):
        return given
    if isinstance(given, tuple | list) and len(given) == 2 and _holds_names(given[0]):
        return given[0], tensors_of("edge_label_index", given[1])
    return tensors_of("edge_label_index", given)


def check_links(data: Any, given: Any, labels: Any, times: Tensor | None) -> None:
    """Raise ValueError for invalid links. Links of stores are checked when they are sampled."""
    typed = TypedData.of(data)
    if typed is None:
        return
    edge_type, ends = _typed_links(data, given) if typed.is_typed else (EDGE, given)
    if ends is None:
        ends = typed.edges[edge_type].edge_index
    else:
        _check_ends(ends, [typed.nodes[end].num_nodes for end in edge_type[::2]])
    num_links = ends.shape[1]
    if labels is not None and (not isinstance(labels, Tensor) or labels.shape[:1] != (num_links,)):
        raise ValueError(f"edge_label is {_described(labels)} for {num_links} links: give one row for each")
    _check_times("edge_label_time", times, num_links)


def check_edges(counts: Mapping[NodeType, int | None], edges: Mapping[EdgeType, Any]) -> None:
    """Raise ValueError unless edges are whole numbers (2, edges) and both ends have known node counts."""
    for edge_type, storage in edges.items():
        for end in (edge_type[0], edge_type[2]):
            if counts.get(end) is None:
                raise ValueError(
                    f"edges of {edge_type}: the number of {end!r} nodes is unknown; "
                    f"set data[{end!r}].num_nodes, or give these nodes an attribute such as x"
                )
        if isinstance(storage.get("adj_t"), Tensor):
            raise ValueError(
                f"adj_t of {edge_type} is a torch sparse tensor, which torch_geometric's loaders do not "
                "support: keep the edges as edge_index, without ToSparseTensor"
            )
        ends = storage.edge_index if "edge_index" in storage else None
        if ends is not None and (ends.dim() != 2 or ends.shape[0] != 2 or not _is_whole(ends)):
            raise ValueError(
                f"edge_index of {edge_type} is {_described(ends)}: give int64 (2, edges), "
                "sources over destinations"
            )


def check_weights(name: str, edge_type: EdgeType, weights: Tensor, num_edges: int) -> None:
    """Raise ValueError unless there is a finite number, 0 or more, for every edge."""
    if weights.shape != (num_edges,):
        raise ValueError(
            f"The weight attribute '{name}' of {edge_type} is {_described(weights)}: "
            f"give one number for each of {num_edges} edges"
        )
    bad = (~((weights >= 0) & weights.isfinite())).nonzero()
    if bad.numel():
        edge = int(bad[0])
        raise ValueError(
            f"The weight attribute '{name}' of {edge_type} is {weights[edge].item()} for edge {edge}: "
            "weights are finite numbers, 0 or more"
        )


def check_whole_times(name: str, by_type: Mapping[Any, Tensor]) -> None:
    """Raise ValueError unless times of nodes, or of edges, are whole numbers, one each."""
    for type_, times in by_type.items():
        if times.dim() != 1 or not _is_whole(times):
            raise ValueError(
                f"The time attribute '{name}' of {type_!r} is {_described(times)}: "
                "give whole numbers, one for each; seconds since 1970, say"
            )


def _typed_nodes(data: TypedData, given: Any) -> tuple[NodeType, Any]:
    if not data.is_typed:
        return NODE, given
    is_pair = isinstance(given, tuple | list) and len(given) == 2
    node_type, ids = given if is_pair else (given, None)
    if not isinstance(node_type, str):
        raise ValueError(
            f"input_nodes is {_described(given)}: the nodes of a HeteroData have types; give a type or "
            f"(type, ids or mask); there are {list(data.nodes)}"
        )
    if node_type not in data.nodes:
        raise ValueError(f"input_nodes of {node_type!r}: not a node type; there are {list(data.nodes)}")
    return node_type, ids


def _typed_links(data: Any, given: Any) -> tuple[EdgeType, Tensor | None]:
    is_pair = isinstance(given, tuple | list) and len(given) == 2 and not isinstance(given[0], str)
    names, ends = given if is_pair else (given, None)
    if not _holds_names(names):
        raise ValueError(
            f"edge_label_index is {_described(given)}: the edges of a HeteroData have types; give a type or "
            f"(type, edge_label_index); there are {data.edge_types}"
        )
    edge_type = data._to_canonical(*names)
    if ends is None and edge_type not in data.edge_types:
        raise ValueError(f"edge_label_index of {edge_type}: not an edge type; there are {data.edge_types}")
    for end in (edge_type[0], edge_type[-1]):
        if end not in data.node_types:
            raise ValueError(f"links of {edge_type}: {end!r} is not a node type; there are {data.node_types}")
    return edge_type, ends


def _check_ends(ends: Any, counts: Sequence[int]) -> None:
    if not isinstance(ends, Tensor) or ends.dim() != 2 or ends.shape[0] != 2 or not _is_whole(ends):
        raise ValueError(
            f"edge_label_index is {_described(ends)}: give int64 (2, links), sources over destinations"
        )
    for what, ids, count in zip(("sources", "destinations"), ends, counts, strict=True):
        check_ids(f"edge_label_index, {what}", ids.long(), count)


def _check_times(what: str, times: Tensor | None, count: int) -> None:
    if times is not None and (times.shape != (count,) or not _is_whole(times)):
        raise ValueError(f"{what} is {_described(times)}: give whole numbers, one for each of {count} inputs")


def _holds_names(given: Any) -> bool:
    return isinstance(given, tuple | list) and bool(given) and all(isinstance(name, str) for name in given)


def _is_whole(values: Tensor) -> bool:
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


def _described(given: Any) -> str:
    if isinstance(given, Tensor):
        return described(given)
    return repr(given) if given is None or isinstance(given, str) else f"a {type(given).__name__}"
