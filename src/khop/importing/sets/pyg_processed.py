"""Data sets of torch_geometric as it stores them: processed/data.pt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.graph.tables import EdgeTable, NodeTable
from khop.importing.sets.set_graph import EDGE, NODE, SetGraph
from khop.importing.sets.tensor_file import tensor_file
from khop.schema import EdgeType, NodeType

_CLASSES = ("torch_geometric.data.data.Data", "torch_geometric.data.hetero_data.HeteroData")
_GLOBAL = "_global_store"
_MASK = "_mask"
Values = Mapping[Any, Any]


def pyg_processed(path: Path, name: str) -> SetGraph:
    """Read one graph. Attributes with a row per node or edge become columns, masks become splits.

    Classes and their number are found in `y`, as `khop.graph_from_pyg` does.
    """
    given = tensor_file(path, _CLASSES)
    data, slices = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if isinstance(given, tuple) and len(given) == 3:
        data, slices = given[:2]
    if slices is not None:
        raise ValueError(f"{path}: holds several graphs; sets of one graph are imported")
    if not isinstance(data, dict):
        raise ValueError(
            f"{path}: holds a {type(data).__name__}, and torch_geometric's to_dict() is expected"
        )
    nodes, edges = _stores(data)
    counts = {node_type: _count(store, node_type, edges, path) for node_type, store in nodes.items()}
    return SetGraph(
        name,
        {node_type: _nodes(store, counts[node_type]) for node_type, store in nodes.items()},
        {edge_type: _edges(store) for edge_type, store in edges.items()},
    )


def _stores(data: Values) -> tuple[dict[NodeType, Values], dict[EdgeType, Values]]:
    if _GLOBAL not in data:
        return {NODE: data}, {EDGE: data}
    nodes = {key: store for key, store in data.items() if isinstance(key, str) and key != _GLOBAL}
    return nodes, {key: store for key, store in data.items() if isinstance(key, tuple)}


def _count(store: Values, node_type: NodeType, edges: Mapping[EdgeType, Values], path: Path) -> int:
    """Return the number of nodes: as given, or the rows of the features, else by the edges."""
    if isinstance(store.get("num_nodes"), int):
        return int(store["num_nodes"])
    for name in ("x", "y"):
        if isinstance(store.get(name), Tensor):
            return len(store[name])
    ends = [
        int(of["edge_index"][row].max()) + 1
        for edge_type, of in edges.items()
        for row, end in enumerate((edge_type[0], edge_type[2]))
        if end == node_type and of["edge_index"].numel()
    ]
    if not ends:
        raise ValueError(f"{path}: {node_type!r} has neither num_nodes nor x; set num_nodes")
    return max(ends)


def _nodes(store: Values, count: int) -> NodeTable:
    columns: dict[str, Tensor] = {}
    splits: dict[str, Tensor] = {}
    for name, value in store.items():
        if not isinstance(value, Tensor) or value.dim() == 0 or len(value) != count or "edge_" in str(name):
            continue
        if str(name).endswith(_MASK) and value.dtype == torch.bool:
            splits |= _splits(str(name).removesuffix(_MASK), value)
        else:
            columns[str(name)] = value
    return NodeTable(count, columns, splits, _classes(columns), unknown=_numbers(columns))


def _splits(name: str, mask: Tensor) -> dict[str, Tensor]:
    masks = {name: mask} if mask.dim() == 1 else {f"{name}.{i}": mask[:, i] for i in range(mask.shape[1])}
    return {split: one for split, one in masks.items() if bool(one.any())}


def _classes(columns: dict[str, Tensor]) -> dict[str, int]:
    y = columns.get("y")
    if y is None or y.dtype != torch.int64 or y.numel() == 0 or y.numel() != len(y):
        return {}
    columns["y"] = y.view(-1)
    most = int(y.max()) + 1
    return {"y": most} if int(y.min()) >= -1 and most > 0 else {}


def _numbers(columns: Mapping[str, Tensor]) -> list[str]:
    return [name for name, column in columns.items() if name == "y" and column.is_floating_point()]


def _edges(store: Values) -> EdgeTable:
    index = store["edge_index"]
    count = index.shape[1]
    columns: dict[str, Tensor | npt.NDArray[np.generic]] = {
        str(name): value
        for name, value in store.items()
        if isinstance(value, Tensor)
        and str(name).startswith(("edge_attr", "edge_weight", "edge_type", "edge_time", "time"))
        and value.dim() > 0
        and len(value) == count
    }
    return EdgeTable(index[0].contiguous(), index[1].contiguous(), columns)
