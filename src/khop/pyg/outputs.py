"""Conversion of khop's samples to torch_geometric's sampler outputs, and of their columns to batches.

Only this module distinguishes `Data` from `HeteroData`; others use storages by type.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import BaseStorage
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from khop.batch import Adjacency, Sample, Subgraph
from khop.kernels.gather import gather
from khop.kernels.memory import pooled
from khop.schema import EdgeType, NodeType, Schema

NODE = "node"  # types that stand for those of a graph without types
EDGE = (NODE, "to", NODE)
DATA_KINDS = (Data, HeteroData)

Key = NodeType | EdgeType | None  # None: for a graph without types


@dataclass(frozen=True, eq=False)
class TypedData:
    """The nodes and edges of a data object by type; a `Data` gets the types NODE and EDGE."""

    nodes: Mapping[NodeType, Any]  # storages, or the `Data` itself
    edges: Mapping[EdgeType, Any]
    is_typed: bool

    @classmethod
    def of(cls, data: object) -> TypedData | None:
        """Return the storages of a data object; None for stores and all other objects."""
        match data:
            case HeteroData():
                return cls(dict(data.node_items()), dict(data.edge_items()), is_typed=True)
            case Data():
                return cls({NODE: data}, {EDGE: data}, is_typed=False)
        return None


def storages(data: Any) -> Iterator[tuple[Key, BaseStorage]]:
    """Yield the storages of a data object, by type; a `Data` has one for nodes and edges, under None."""
    if isinstance(data, Data):
        yield None, data._store
        return
    yield from data.node_items()
    yield from data.edge_items()


def owner_of(data: Any, owner: Key) -> Any:
    """Return the object with the attributes of a type."""
    return data if owner is None else data[owner]


Output = Any  # SamplerOutput or HeteroSamplerOutput


def sampler_output(sample: Sample, schema: Schema) -> HeteroSamplerOutput:
    """Return the subgraph of a sample. `row` and `col` are adjacent in memory: stacking needs no copy."""
    sample = with_row_per_seed(sample)
    subgraph = sample.subgraph
    assert subgraph is not None
    edges, edge_ids = {}, {}
    for edge_type in schema.edge_types:
        adjacency = subgraph.adjacencies.get(edge_type)
        edges[edge_type] = edge_pairs(adjacency) if adjacency else torch.empty(2, 0, dtype=torch.int64)
        edge_ids[edge_type] = adjacency.edge_ids if adjacency else torch.empty(0, dtype=torch.int64)
    per_hop = subgraph.edges_per_hop  # None for an induced subgraph, as in torch_geometric
    return HeteroSamplerOutput(
        node=dict(sample.nodes),
        row={t: pairs[0] for t, pairs in edges.items()},
        col={t: pairs[1] for t, pairs in edges.items()},
        edge=edge_ids,
        batch=None if sample.trees is None else dict(sample.trees),
        num_sampled_nodes=None if per_hop is None else {t: [*n] for t, n in subgraph.nodes_per_hop.items()},
        num_sampled_edges=None if per_hop is None else {t: [*per_hop.get(t, ())] for t in edges},
    )


def edge_pairs(adjacency: Adjacency) -> Tensor:
    """Return int64 (2, edges), equal to `Adjacency.edge_index`, in a pooled block."""
    pairs = pooled((2, adjacency.indices.numel()), torch.int64)
    pairs[0].copy_(adjacency.indices)
    rows = torch.arange(adjacency.num_dst)
    pairs[1].copy_(
        torch.repeat_interleave(rows, adjacency.indptr.diff(), output_size=adjacency.indices.numel())
    )
    return pairs


def original_ids(edge_ids: Tensor | None, permutation: Tensor | None) -> Tensor:
    """Convert edge ids in the order of a graph store to the data's edge ids, int64 (edges)."""
    assert edge_ids is not None
    return edge_ids.long() if permutation is None else gather(permutation, edge_ids.long())


def side_by_side(row: Tensor, col: Tensor) -> Tensor:
    """Stack `row` and `col`, without a copy if they are the two halves of one tensor."""
    count = row.numel()
    adjacent = (
        row.untyped_storage().data_ptr() == col.untyped_storage().data_ptr()
        and col.storage_offset() == row.storage_offset() + count
        and row.is_contiguous()
        and col.is_contiguous()
    )
    return row.as_strided((2, count), (count, 1)) if adjacent else torch.stack([row, col])


def with_row_per_seed(sample: Sample) -> Sample:
    """Give every seed a row, duplicates included. Without duplicates, the sample is returned unchanged.

    A duplicate's row has the same in-edges as the first row of its node, which is the source of the node's
    out-edges. torch_geometric's samplers do the same, except that they draw separately for each duplicate.
    """
    subgraph = sample.subgraph
    assert subgraph is not None
    seed_counts = {t: counts[0] for t, counts in subgraph.nodes_per_hop.items()}
    if all(index.numel() == seed_counts[t] for t, index in sample.seed_index.items()):
        return sample
    rows = {
        t: _Repeated.of(sample.seed_index.get(t), seed_counts[t], nodes.numel())
        for t, nodes in sample.nodes.items()
    }
    nodes_per_hop = {t: (rows[t].num_seeds, *counts[1:]) for t, counts in subgraph.nodes_per_hop.items()}
    adjacencies = {t: _repeat(a, rows[t[0]], rows[t[2]]) for t, a in subgraph.adjacencies.items()}
    edges_per_hop = (
        None
        if subgraph.edges_per_hop is None
        else {
            t: (int(adjacencies[t].indptr[rows[t[2]].num_seeds]), *counts[1:]) if counts else counts
            for t, counts in subgraph.edges_per_hop.items()
        }
    )
    repeated = Subgraph(adjacencies, nodes_per_hop, edges_per_hop)
    index = {t: torch.arange(rows[t].num_seeds) for t in sample.seed_index}
    nodes = {t: of_type[rows[t].old] for t, of_type in sample.nodes.items()}
    return Sample(nodes, repeated.blocks(), index, repeated)


@dataclass(frozen=True)
class _Repeated:
    """The change of a node type's rows."""

    num_seeds: int
    old: Tensor  # int64 (new rows): the old row of each
    new: Tensor  # int32 (old rows): the new row of each, the first one if there are several

    @classmethod
    def of(cls, seed_index: Tensor | None, distinct: int, count: int) -> _Repeated:
        index = torch.arange(distinct) if seed_index is None else seed_index
        num_seeds = index.numel()
        old = torch.cat([index, torch.arange(distinct, count)])
        first = torch.full((count,), old.numel())
        first.scatter_reduce_(0, old, torch.arange(old.numel()), "amin")
        return cls(num_seeds, old, first.int())


def _repeat(adjacency: Adjacency, sources: _Repeated, destinations: _Repeated) -> Adjacency:
    degrees = adjacency.indptr.diff()[destinations.old]
    indptr = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
    shift = adjacency.indptr[:-1][destinations.old] - indptr[:-1]
    positions = torch.arange(int(indptr[-1])) + torch.repeat_interleave(shift, degrees)
    indices = sources.new[adjacency.indices[positions].long()]
    edge_ids = None if adjacency.edge_ids is None else adjacency.edge_ids[positions]
    weight = None if adjacency.weight is None else adjacency.weight[positions]
    return Adjacency(indptr, indices, sources.old.numel(), edge_ids, weight=weight)


def single(output: HeteroSamplerOutput) -> SamplerOutput:
    """Return the output of a graph without types."""
    return SamplerOutput(
        node=output.node[NODE],
        row=output.row[EDGE],
        col=output.col[EDGE],
        edge=output.edge[EDGE],
        batch=None if output.batch is None else output.batch[NODE],
        num_sampled_nodes=None if output.num_sampled_nodes is None else output.num_sampled_nodes[NODE],
        num_sampled_edges=None if output.num_sampled_edges is None else output.num_sampled_edges[EDGE],
    )


Batch = Any  # Data or HeteroData


@dataclass(frozen=True)
class _Column:
    """One attribute with a row per node or edge."""

    owner: Key
    name: str
    value: Any  # a tensor, a NumPy array, a list or a torch_frame.TensorFrame
    dim: int


@dataclass(frozen=True)
class Columns:
    """The attributes of a data object to slice, collected at the start of each epoch."""

    data: Batch
    counted: tuple[Key, ...]  # node types with a num_nodes attribute
    of_nodes: tuple[_Column, ...]
    connected: tuple[Key, ...]  # edge types with an edge_index
    of_edges: tuple[_Column, ...]

    @classmethod
    def of(cls, data: Batch) -> Columns:
        """Classify attributes as node, edge or graph attributes, as torch_geometric does."""
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
        """Return a copy of the data with the sampled rows, n_id, e_id, batch, and counts of the sample."""
        parts = _Parts.of(self.data, output, permutations)
        batch = copy.copy(self.data)
        for owner in self.counted:
            owner_of(batch, owner).num_nodes = parts.nodes[owner].numel()
        for column in self.of_nodes:
            owner_of(batch, column.owner)[column.name] = _rows(column, parts.nodes[column.owner])
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
    """A sampler's output by type, with edges numbered as in the data. Types that it leaves out are empty."""

    nodes: Mapping[Key, Tensor]
    rows: Mapping[Key, Tensor]
    cols: Mapping[Key, Tensor]
    edge_ids: Mapping[Key, Tensor | None]
    attributes: Mapping[str, Mapping[Key, Any]]

    @classmethod
    def of(cls, data: Batch, output: Output, permutations: Any) -> _Parts:
        named = ("batch", "num_sampled_nodes", "num_sampled_edges")
        directed = {"_orig_edge_index": _directed(output)}  # of `to_bidirectional(keep_orig_edges=True)`
        if isinstance(output, SamplerOutput):
            edge_ids: dict[Key, Tensor | None] = {None: _original(output.edge, permutations)}
            attributes: dict[str, dict[Key, Any]] = {name: {None: getattr(output, name)} for name in named}
            attributes |= directed
            return cls({None: output.node}, {None: output.row}, {None: output.col}, edge_ids, attributes)
        known, nothing = permutations or {}, torch.empty(0, dtype=torch.int64)
        without = dict.fromkeys((t for t in data.edge_types if t not in output.row), nothing)
        edge_ids = {t: _original(ids, known.get(t)) for t, ids in (output.edge or {}).items()}
        attributes = {name: getattr(output, name) or {} for name in named}
        nodes = dict.fromkeys(data.node_types, nothing) | output.node
        rows, cols = without | output.row, without | output.col
        return cls(nodes, rows, cols, without | edge_ids, attributes | directed)

    def edge_index(self, owner: Key) -> Tensor:
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


def _directed(output: Output) -> dict[Key, Tensor]:
    """Return the edges before they were made bidirectional, if the output has them."""
    rows, cols = output.orig_row, output.orig_col
    if rows is None or cols is None:
        return {}
    if isinstance(output, SamplerOutput):
        return {None: torch.stack([rows, cols])}
    return {edge_type: torch.stack([rows[edge_type], cols[edge_type]]) for edge_type in rows}


def _original(edge_ids: Tensor | None, permutation: Tensor | None) -> Tensor | None:
    return None if edge_ids is None else original_ids(edge_ids, permutation)


def _rows(column: _Column, ids: Tensor) -> Any:
    value = column.value
    if isinstance(value, list | tuple):
        return type(value)([value[i] for i in ids.tolist()])
    if isinstance(value, np.ndarray):
        rows = np.take(value, ids.cpu().numpy(), axis=column.dim)
        return rows if rows.dtype.kind not in "biufc" else torch.from_numpy(rows)
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
