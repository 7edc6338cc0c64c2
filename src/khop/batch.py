"""What a loader yields: blocks, node ids, columns and seeds, all in local ids of one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from khop.schema import EdgeType, NodeType, only

Columns = Mapping[NodeType | EdgeType, Mapping[str, Tensor]]
Place = torch.device | str | int


@dataclass(frozen=True)
class Adjacency:
    """The edges of one type in a block, in CSC order: row i holds the in-edges of destination i."""

    indptr: Tensor  # int64 (num_dst + 1)
    indices: Tensor  # int32 (edges), local source ids
    num_src: int
    edge_ids: Tensor | None = None  # int64 (edges), positions in the graph's CSC order

    @property
    def num_dst(self) -> int:
        """Destinations, with and without edges."""
        return self.indptr.numel() - 1

    @property
    def edge_index(self) -> Tensor:
        """int64 (2, edges): sources over destinations, as torch_geometric takes them. Made anew each time."""
        counts = self.indptr.diff()
        destinations = torch.repeat_interleave(torch.arange(self.num_dst, device=counts.device), counts)
        return torch.stack([self.indices.long(), destinations])

    def to(self, device: Place) -> Adjacency:
        """The same edges on another device."""
        move = _mover(device)
        edge_ids = None if self.edge_ids is None else move(self.edge_ids)
        return Adjacency(move(self.indptr), move(self.indices), self.num_src, edge_ids)


@dataclass(frozen=True)
class Block:
    """One layer's bipartite graph. Destinations are a prefix of the sources of the same node type."""

    adjacencies: Mapping[EdgeType, Adjacency]
    src_counts: Mapping[NodeType, int]
    dst_counts: Mapping[NodeType, int]

    @property
    def adjacency(self) -> Adjacency:
        """The edges, of a graph with one edge type."""
        return only(self.adjacencies, "block.adjacency")

    @property
    def edge_index(self) -> Tensor:
        """int64 (2, edges), of a graph with one edge type."""
        return self.adjacency.edge_index

    @property
    def num_src(self) -> int:
        """Source rows, of a graph with one node type."""
        return only(self.src_counts, "block.num_src")

    @property
    def num_dst(self) -> int:
        """Destination rows, of a graph with one node type."""
        return only(self.dst_counts, "block.num_dst")

    def to(self, device: Place) -> Block:
        """The same block on another device."""
        return replace(self, adjacencies={t: a.to(device) for t, a in self.adjacencies.items()})


@dataclass(frozen=True)
class Subgraph:
    """One graph of all sampled nodes (the subgraph expansion): seeds first, then first-seen order.

    Rows are in local id order and a node is expanded once, so that each layer's block is a prefix of it.
    """

    adjacencies: Mapping[EdgeType, Adjacency]  # rows: all nodes of the destination type
    nodes_per_hop: Mapping[NodeType, tuple[int, ...]]  # new nodes at hop 0 (the seeds), 1, 2, ...
    edges_per_hop: Mapping[EdgeType, tuple[int, ...]]  # edges drawn at hop 1, 2, ...


@dataclass(frozen=True)
class Sample:
    """What a sampler gives: the nodes of a batch and the blocks over them, input layer first."""

    nodes: Mapping[NodeType, Tensor]  # int64 (rows), global ids; the position is the local id
    blocks: tuple[Block, ...]
    seed_index: Mapping[NodeType, Tensor]  # int64 (seeds), the local id of each seed, duplicates included
    subgraph: Subgraph | None = None  # of the subgraph expansion; its blocks are then views of it


@dataclass(frozen=True)
class Batch:
    """A sample with its columns. Model output and seed columns have one row per seed, duplicates included."""

    sample: Sample
    seed_nodes: Mapping[NodeType, Tensor]  # int64 (seeds), global ids, in the epoch's global order
    columns: Columns  # per type: column name -> (rows, ...), rows as sample.nodes (or the last block's edges)
    seed_columns: Columns  # per seed node type: column name -> (seeds, ...)
    epoch: int
    step: int
    num_global_seeds: int  # seeds of this step over all ranks
    world_size: int = 1
    seconds: Mapping[str, float] = field(default_factory=dict)  # stage -> time spent making this batch

    def __getitem__(self, key: str | tuple[NodeType | EdgeType, str]) -> Tensor:
        """`batch["x"]` of a graph with one node type, `batch["item", "x"]` of any."""
        if isinstance(key, str):
            return _column(only(self._node_columns(self.columns), f"batch[{key!r}]"), key)
        return _column(self.columns.get(key[0], {}), key[1])

    def seed_column(self, name: str, node_type: NodeType | None = None) -> Tensor:
        """One row per seed, of the seeds' only node type unless one is named."""
        by_type = self._node_columns(self.seed_columns)
        columns = by_type.get(node_type, {}) if node_type else only(by_type, f"batch.seed_column({name!r})")
        return _column(columns, name)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """One per layer, input layer first."""
        return self.sample.blocks

    @property
    def input_nodes(self) -> Tensor:
        """int64 (rows), global ids, of a graph with one node type."""
        return only(self.sample.nodes, "batch.input_nodes")

    @property
    def seeds(self) -> Tensor:
        """int64 (seeds), global ids, where seeds are of one node type."""
        return only(self.seed_nodes, "batch.seeds")

    @property
    def seed_index(self) -> Tensor:
        """int64 (seeds), each seed's row in the last layer's output, where seeds are of one node type."""
        return only(self.sample.seed_index, "batch.seed_index")

    def global_mean(self, losses: Tensor) -> Tensor:
        """This rank's loss, scaled so that averaging gradients over ranks gives the global batch's mean."""
        return losses.sum() * (self.world_size / self.num_global_seeds)

    def to(self, device: Place) -> Batch:
        """The same batch on another device."""
        move = _mover(device)
        sample = replace(
            self.sample,
            nodes=_move_all(self.sample.nodes, move),
            blocks=tuple(block.to(device) for block in self.sample.blocks),
            seed_index=_move_all(self.sample.seed_index, move),
        )
        return replace(
            self,
            sample=sample,
            seed_nodes=_move_all(self.seed_nodes, move),
            columns={t: _move_all(c, move) for t, c in self.columns.items()},
            seed_columns={t: _move_all(c, move) for t, c in self.seed_columns.items()},
        )

    @staticmethod
    def _node_columns(columns: Columns) -> dict[NodeType, Mapping[str, Tensor]]:
        return {t: c for t, c in columns.items() if isinstance(t, str)}


def _column(columns: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in columns:
        raise ValueError(f"batch has no column {name!r}; the loader was asked for {sorted(columns)}")
    return columns[name]


def _mover(device: Place) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor.to(device, non_blocking=True)


def _move_all(tensors: Mapping[NodeType, Tensor], move: Callable[[Tensor], Tensor]) -> dict[NodeType, Tensor]:
    return {name: move(tensor) for name, tensor in tensors.items()}
