"""What a loader yields: blocks, node ids, columns and seeds, all in local ids of one batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from khop.schema import EdgeType, NodeType, only

Columns = Mapping[NodeType, Mapping[str, Tensor]]
Change = Callable[[Tensor], Tensor]
Place = torch.device | str | int


@dataclass(frozen=True)
class Span:
    """A stretch of one thread's time, by `time.monotonic`, a clock that a machine's processes share."""

    stage: str  # "sampling", "gathering", "waiting", ...
    begun: float
    ended: float
    thread: str
    part: str = ""  # of the stage: "backward" of "computing"

    @classmethod
    def since(cls, begun: float, stage: str, part: str = "") -> Span:
        """What the thread that calls this has done since `begun`."""
        return cls(stage, begun, time.monotonic(), threading.current_thread().name, part)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.begun


@dataclass(frozen=True)
class Adjacency:
    """The edges of one type in a block, in CSC order: row i holds the in-edges of destination i."""

    indptr: Tensor  # int64 (num_dst + 1)
    indices: Tensor  # int32 (edges), local source ids
    num_src: int
    edge_ids: Tensor | None = None  # int64 (edges), positions in the graph's CSC order
    columns: Mapping[str, Tensor] = field(default_factory=dict)  # edge column name -> (edges, ...)
    reverse: Tensor | None = None  # bool (edges), of bidirectional output: the edge was turned round

    @property
    def num_dst(self) -> int:
        """Destinations, with and without edges."""
        return self.indptr.numel() - 1

    @property
    def edge_index(self) -> Tensor:
        """int64 (2, edges): sources over destinations, as torch_geometric takes them. Made anew each time."""
        counts = self.indptr.diff()
        rows = torch.arange(self.num_dst, device=counts.device)
        destinations = torch.repeat_interleave(rows, counts, output_size=self.indices.numel())
        return torch.stack([self.indices.long(), destinations])

    def prefix(self, num_dst: int, num_edges: int, num_src: int) -> Adjacency:
        """The first `num_dst` rows, which hold `num_edges` edges: views, nothing is copied."""
        edge_ids = None if self.edge_ids is None else self.edge_ids[:num_edges]
        columns = {name: column[:num_edges] for name, column in self.columns.items()}
        reverse = None if self.reverse is None else self.reverse[:num_edges]
        indptr, indices = self.indptr[: num_dst + 1], self.indices[:num_edges]
        return Adjacency(indptr, indices, num_src, edge_ids, columns, reverse)

    def map(self, change: Change) -> Adjacency:
        """The same edges with every tensor changed."""
        edge_ids = None if self.edge_ids is None else change(self.edge_ids)
        columns = _map_all(self.columns, change)
        reverse = None if self.reverse is None else change(self.reverse)
        indptr, indices = change(self.indptr), change(self.indices)
        return Adjacency(indptr, indices, self.num_src, edge_ids, columns, reverse)


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

    def map(self, change: Change) -> Block:
        """The same block with every tensor changed."""
        return replace(self, adjacencies={t: a.map(change) for t, a in self.adjacencies.items()})

    def to(self, device: Place) -> Block:
        """The same block on another device."""
        return self.map(_mover(device))


@dataclass(frozen=True)
class Subgraph:
    """One graph of all sampled nodes (the subgraph expansion): seeds first, then first-seen order.

    Rows are in local id order and a node is expanded once, at the hop after the one that found it. So the
    rows that a layer needs are a prefix, and a block is a view. The last hop's nodes have empty rows. Where
    the edges are others than those drawn (khop.Output), there is no such prefix: every block is the whole.
    """

    adjacencies: Mapping[EdgeType, Adjacency]  # rows: all nodes of the destination type
    nodes_per_hop: Mapping[NodeType, tuple[int, ...]]  # new nodes at hop 0 (the seeds), 1, 2, ...
    edges_per_hop: Mapping[EdgeType, tuple[int, ...]] | None  # drawn at hop 1, 2, ...; None: not those drawn
    turned: Mapping[EdgeType, EdgeType] = field(default_factory=dict)  # of reverses -> whose edges they are

    def blocks(self) -> tuple[Block, ...]:
        """One per layer, input layer first: views of what trimming the subgraph per layer would leave."""
        num_hops = len(next(iter(self.nodes_per_hop.values()))) - 1
        if self.edges_per_hop is None:
            counts = {t: sum(of_type) for t, of_type in self.nodes_per_hop.items()}
            return (Block(self.adjacencies, counts, counts),) * num_hops
        return tuple(self._block(depth, self.edges_per_hop) for depth in range(num_hops, 0, -1))

    def map(self, change: Change) -> Subgraph:
        """The same subgraph with every tensor changed."""
        return replace(self, adjacencies={t: a.map(change) for t, a in self.adjacencies.items()})

    def _block(self, depth: int, edges_per_hop: Mapping[EdgeType, tuple[int, ...]]) -> Block:
        dst_counts = {t: sum(counts[:depth]) for t, counts in self.nodes_per_hop.items()}
        src_counts = {t: sum(counts[: depth + 1]) for t, counts in self.nodes_per_hop.items()}
        adjacencies = {
            t: a.prefix(dst_counts[t[2]], sum(edges_per_hop[t][:depth]), src_counts[t[0]])
            for t, a in self.adjacencies.items()
        }
        return Block(adjacencies, src_counts, dst_counts)


@dataclass(frozen=True)
class LinkRows:
    """The links of one edge type that a batch is about, as rows of the model's output (one row per seed).

    A pair is what gets one score: of binary negatives the links come first, then the negatives of the first
    link, of the second, and so on; else the pairs are the links.
    """

    source: Tensor  # int64 (pairs), rows of the source type
    destination: Tensor  # int64 (pairs), rows of the destination type
    positions: Tensor  # int64 (links), in the epoch's global order
    labels: Tensor | None = None  # (pairs, ...): the links' own, else 1; of binary negatives 0
    negatives: Tensor | None = None  # int64 (links, k), rows of the destination type, of triplets
    pairs_per_link: int = 1

    @property
    def num_links(self) -> int:
        """Links, their negatives aside."""
        return self.positions.numel()

    def map(self, change: Change) -> LinkRows:
        """The same links with every tensor changed."""
        return LinkRows(
            change(self.source),
            change(self.destination),
            change(self.positions),
            None if self.labels is None else change(self.labels),
            None if self.negatives is None else change(self.negatives),
            self.pairs_per_link,
        )


@dataclass(frozen=True)
class Sample:
    """What a sampler gives: the nodes of a batch and the blocks over them, input layer first."""

    nodes: Mapping[NodeType, Tensor]  # int64 (rows), global ids; the position is the local id
    blocks: tuple[Block, ...]
    seed_index: Mapping[NodeType, Tensor]  # int64 (seeds), the local id of each seed, duplicates included
    subgraph: Subgraph | None = None  # of the subgraph expansion; the blocks are then views of it
    trees: Mapping[NodeType, Tensor] | None = None  # int64 (rows), the seed whose disjoint tree a node is in
    links: Mapping[EdgeType, LinkRows] = field(default_factory=dict)  # where seeds are links

    def map(self, change: Change) -> Sample:
        """The same sample with every tensor changed, each once: blocks that are views stay views."""
        subgraph = None if self.subgraph is None else self.subgraph.map(change)
        blocks = tuple(b.map(change) for b in self.blocks) if subgraph is None else subgraph.blocks()
        trees = None if self.trees is None else _map_all(self.trees, change)
        links = {edge_type: rows.map(change) for edge_type, rows in self.links.items()}
        nodes, seed_index = _map_all(self.nodes, change), _map_all(self.seed_index, change)
        return Sample(nodes, blocks, seed_index, subgraph, trees, links)


@dataclass(frozen=True)
class DeviceRows:
    """Rows of one type's columns that lie on the device where a batch goes, and do not go there with it."""

    slots: Tensor  # int64 (n), where they are kept there
    rows: Tensor  # int64 (n), which rows of the batch they are
    others: Tensor  # int64 (m), which rows of the batch its columns hold meanwhile

    def map(self, change: Change) -> DeviceRows:
        """The same with every tensor changed."""
        return DeviceRows(change(self.slots), change(self.rows), change(self.others))


@dataclass(frozen=True)
class Batch:
    """A sample with its columns. Model output and seed columns have one row per seed, duplicates included.

    Columns of edges lie where the edges are: `block.adjacencies[edge_type].columns`.
    """

    sample: Sample
    seed_nodes: Mapping[NodeType, Tensor]  # int64 (seeds), global ids, in the epoch's global order
    columns: Columns  # per node type: column name -> (rows, ...), rows as sample.nodes
    seed_columns: Columns  # per seed node type: column name -> (seeds, ...)
    epoch: int
    step: int
    num_global_seeds: int  # seeds (nodes or links) of this step over all ranks
    world_size: int = 1
    spans: tuple[Span, ...] = ()  # the time that was spent making it
    traffic: Mapping[str, float] = field(default_factory=dict)  # what this rank has exchanged for it
    on_device: Mapping[NodeType, DeviceRows] = field(default_factory=dict)  # none once it is there

    def __getitem__(self, key: str | tuple[NodeType, str]) -> Tensor:
        """`batch["x"]` where one node type has the column, `batch["item", "x"]` always."""
        return _column(self.columns, key) if isinstance(key, str) else _column(self.columns, key[1], key[0])

    def seed_column(self, name: str, node_type: NodeType | None = None) -> Tensor:
        """One row per seed, of the only seed type that has the column unless one is named."""
        return _column(self.seed_columns, name, node_type)

    @property
    def seconds(self) -> Mapping[str, float]:
        """Stage -> time spent making this batch."""
        return {span.stage: span.seconds for span in self.spans}

    @property
    def blocks(self) -> tuple[Block, ...]:
        """One per layer, input layer first."""
        return self.sample.blocks

    @property
    def links(self) -> Mapping[EdgeType, LinkRows]:
        """The links that the batch is about, where seeds are links."""
        return self.sample.links

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
        """This rank's loss, scaled so that the gradient averaged over ranks is the global batch's mean.

        `losses` has one entry per seed or, of links, per pair (see `LinkRows`).
        """
        per_seed = max((rows.pairs_per_link for rows in self.links.values()), default=1)
        return losses.sum() * (self.world_size / (self.num_global_seeds * per_seed))

    def map(self, change: Change) -> Batch:
        """The same batch with every tensor changed, each once."""
        return replace(
            self,
            sample=self.sample.map(change),
            seed_nodes=_map_all(self.seed_nodes, change),
            columns={t: _map_all(c, change) for t, c in self.columns.items()},
            seed_columns={t: _map_all(c, change) for t, c in self.seed_columns.items()},
            on_device={t: rows.map(change) for t, rows in self.on_device.items()},
        )

    def to(self, device: Place) -> Batch:
        """The same batch on another device."""
        return self.map(_mover(device))

    def to_pyg(self) -> Any:  # noqa: ANN401
        """A torch_geometric `Data` or `HeteroData` of a batch of the subgraph expansion; columns are shared.

        Seeds come first, `batch_size` of them; a seed that stands twice has one row, `seed_index` says which.
        """
        # Imported on use: khop works without torch_geometric.
        return import_module("khop.pyg.convert").batch_to_pyg(self)


def num_bytes(batch: Batch) -> int:
    """The memory that a batch's tensors hold, views of one another counted once."""
    sizes: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    batch.map(note)
    return sum(sizes)


def _column(columns: Columns, name: str, node_type: NodeType | None = None) -> Tensor:
    owners = [t for t, of_type in columns.items() if name in of_type and node_type in (None, t)]
    if len(owners) == 1:
        return columns[owners[0]][name]
    if owners:
        raise ValueError(f"column {name!r}: node types {owners} have it in this batch, name one")
    asked = {t: sorted(of_type) for t, of_type in columns.items()}
    of = "" if node_type is None else f" of {node_type!r}"
    raise ValueError(f"column {name!r}{of}: not in this batch; the loader was asked for {asked}")


def _mover(device: Place) -> Change:
    return lambda tensor: tensor.to(device, non_blocking=True)


def _map_all(tensors: Mapping[str, Tensor], change: Change) -> dict[str, Tensor]:
    return {name: change(tensor) for name, tensor in tensors.items()}
