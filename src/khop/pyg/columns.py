"""The columns of a `Data` or `HeteroData`, restricted to the sampled nodes and edges."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import SamplerOutput

from khop.kernels.gather import gather
from khop.pyg.outputs import Output, original_ids, side_by_side
from khop.pyg.typed_data import DATA_KINDS, Key, owner_of, storages
from khop.schema import EdgeType

Batch = Any  # Data or HeteroData


@dataclass(frozen=True)
class _Column:
    """One attribute with a row per node or edge."""

    owner: Key
    name: str
    value: Any  # a tensor, a NumPy array or a torch_frame.TensorFrame
    dim: int


@dataclass(frozen=True)
class Columns:
    """The attributes of a data object to slice, found once per epoch: earlier assignments to it count."""

    data: Batch
    counted: tuple[Key, ...]  # node types with a num_nodes attribute
    of_nodes: tuple[_Column, ...]
    connected: tuple[Key, ...]  # edge types with an edge_index
    of_edges: tuple[_Column, ...]

    @classmethod
    def of(cls, data: Batch) -> Columns:
        """Sort attributes into nodes and edges, as torch_geometric defines them; others are the graph's."""
        counted, of_nodes, connected, of_edges = [], [], [], []
        for owner, storage in storages(data):
            for name, value in storage.items():
                if name == "num_nodes":
                    counted.append(owner)
                elif name == "edge_index":
                    connected.append(owner)
                elif storage.is_node_attr(name):
                    of_nodes.append(_Column(owner, name, value, data.__cat_dim__(name, value, storage)))
                elif storage.is_edge_attr(name):
                    of_edges.append(_Column(owner, name, value, data.__cat_dim__(name, value, storage)))
        return cls(data, tuple(counted), tuple(of_nodes), tuple(connected), tuple(of_edges))

    def batch(self, output: Output, permutations: object) -> Batch:
        """Return a copy of the data with the sampled rows, and n_id, e_id, batch and counts of the sample."""
        parts = _Parts.of(output, permutations)
        batch = copy.copy(self.data)
        for owner in self.counted:
            owner_of(batch, owner).num_nodes = parts.node_ids(owner).numel()
        for column in self.of_nodes:
            owner_of(batch, column.owner)[column.name] = _rows(column, parts.node_ids(column.owner))
        for owner in self.connected:
            like = owner_of(self.data, owner).edge_index
            dtype = torch.int32 if like.dtype == torch.int32 else torch.int64
            owner_of(batch, owner).edge_index = parts.edge_index(owner).to(like.device, dtype)
        for column in self.of_edges:
            ids = parts.edge_ids.get(column.owner)
            owner_of(batch, column.owner)[column.name] = None if ids is None else _rows(column, ids)
        parts.attach(batch)
        return batch


@dataclass(frozen=True)
class _Parts:
    """A sampler's output by type, with edges numbered as in the data."""

    nodes: Mapping[Key, Tensor]
    rows: Mapping[Key, Tensor]
    cols: Mapping[Key, Tensor]
    edge_ids: Mapping[Key, Tensor | None]
    attributes: Mapping[str, Mapping[Key, Any]]

    @classmethod
    def of(cls, output: Output, permutations: Any) -> _Parts:
        named = ("batch", "num_sampled_nodes", "num_sampled_edges")
        if isinstance(output, SamplerOutput):
            edge_ids: dict[Key, Tensor | None] = {None: _original(output.edge, permutations)}
            attributes: dict[str, dict[Key, Any]] = {name: {None: getattr(output, name)} for name in named}
            return cls({None: output.node}, {None: output.row}, {None: output.col}, edge_ids, attributes)
        known = permutations or {}
        edge_ids = {t: _original(ids, known.get(t)) for t, ids in (output.edge or {}).items()}
        attributes = {name: getattr(output, name) or {} for name in named}
        return cls(output.node, output.row, output.col, edge_ids, attributes)

    def node_ids(self, owner: Key) -> Tensor:
        """Return the sampled nodes; empty if the type was not sampled."""
        return self.nodes.get(owner, torch.empty(0, dtype=torch.int64))

    def edge_index(self, owner: Key) -> Tensor:
        if owner not in self.rows:
            return torch.empty(2, 0, dtype=torch.int64)
        return side_by_side(self.rows[owner], self.cols[owner])

    def attach(self, batch: Batch) -> None:
        """Add the attributes about the sample to a batch. The data's own n_id and e_id are kept."""
        for owner, ids in self.nodes.items():
            if "n_id" not in owner_of(batch, owner):
                owner_of(batch, owner).n_id = ids
        for owner, edge_ids in self.edge_ids.items():
            if edge_ids is not None and "e_id" not in owner_of(batch, owner):
                owner_of(batch, owner).e_id = edge_ids
        for name, by_owner in self.attributes.items():
            for owner, value in by_owner.items():
                setattr(owner_of(batch, owner), name, value)


def columns_of(data: object) -> Columns | None:
    """Return the columns; None for data that torch_geometric itself handles: stores and `SparseTensor`s."""
    known = isinstance(data, DATA_KINDS) and not any("adj_t" in storage for storage in data.stores)
    return Columns.of(data) if known else None


def attach_links(batch: Batch, edge_type: EdgeType | None, metadata: tuple[Any, ...]) -> None:
    """Add a batch's links: pairs with labels, or triplets with their ends at their node types."""
    pairs = owner_of(batch, edge_type)
    pairs.input_id = metadata[0]
    if len(metadata) == 4:
        pairs.edge_label_index, pairs.edge_label, pairs.edge_label_time = metadata[1:]
        return
    sources = owner_of(batch, edge_type and edge_type[0])
    destinations = owner_of(batch, edge_type and edge_type[-1])
    sources.src_index, destinations.dst_pos_index, destinations.dst_neg_index = metadata[1:4]
    sources.seed_time = destinations.seed_time = metadata[4]
    if edge_type is None or edge_type in batch.edge_types:  # copied from the data, not valid for the batch
        del pairs.edge_label_index
        del pairs.edge_label_time


def num_bytes(batch: object) -> int:
    """Return the memory of a batch's tensors in bytes."""
    if not isinstance(batch, DATA_KINDS):
        return 0
    values = (value for storage in batch.stores for value in storage.values())
    return sum(value.nbytes for value in values if isinstance(value, Tensor))


def _original(edge_ids: Tensor | None, permutation: Tensor | None) -> Tensor | None:
    return None if edge_ids is None else original_ids(edge_ids, permutation)


def _rows(column: _Column, ids: Tensor) -> Any:
    value = column.value
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.take(value, ids.cpu().numpy(), axis=column.dim))
    if not isinstance(value, Tensor):
        return value[ids.to(value.device)]
    if value.layout != torch.strided:
        raise ValueError(
            f"attribute {column.name!r} has layout {value.layout}: loaders of khop.pyg slice dense rows; "
            "give attribute.to_dense(), or train on khop.graph_from_pyg(data), which keeps torch.sparse_csr"
        )
    simple = type(value) is Tensor and column.dim == 0 and value.is_contiguous()
    if simple and value.device.type == "cpu" and not value.requires_grad:
        return gather(value, ids)
    return torch.index_select(value, column.dim, ids.to(value.device))
