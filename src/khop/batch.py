"""Output of a loader: blocks, node ids, columns and seeds, all in local ids of one batch.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from khop.schema import EdgeType, NodeType, only

Columns = Mapping[NodeType, Mapping[str, Tensor]]
Change = Callable[[Tensor], Tensor]
Place = torch.device | str | int


@dataclass(frozen=True)
class Span:
    """A time interval of one thread, by `time.monotonic`, a clock shared by all processes of a machine."""

    stage: str  # "sampling", "gathering", "waiting", ...
    begun: float
    ended: float
    thread: str
    part: str = ""  # of the stage: "backward" of "computing"

    @classmethod
    def since(cls, begun: float, stage: str, part: str = "") -> Span:
        """Return the interval from `begun` to now, for the calling thread."""
        return cls(stage, begun, time.monotonic(), threading.current_thread().name, part)

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.ended - self.begun


@dataclass(frozen=True)
class Adjacency:
    """The edges of one type in a block, in CSC order: row i holds the in-edges of destination i."""

    indptr: Tensor  # int64 (num_dst + 1)
    indices: Tensor  # int32 (edges), local source ids
    num_src: int
    edge_ids: Tensor | None = None  # int64 (edges), positions in the graph's CSC order
    columns: Mapping[str, Tensor] = field(default_factory=dict)  # edge column name -> (edges, ...)
    reverse: Tensor | None = None  # bool (edges), of bidirectional output: True if the edge was reversed
    weight: Tensor | None = None  # float32 (edges), final coefficients of a sum; None: a mean
    is_padded: bool = False  # of a static shape: entries of edges behind `indptr[-1]` are unused

    @property
    def num_dst(self) -> int:
        """Number of destinations, with and without edges."""
        return self.indptr.numel() - 1

    @property
    def edge_index(self) -> Tensor:
        """int64 (2, edges): sources over destinations, as in torch_geometric. Computed on each access.

        RuntimeError for edges with unused entries, as in recorded steps: these have no destination.
        """
        if self.is_padded:
            raise RuntimeError('edge_index: a static shape has unused edges; set launches="single"')
        rows, num_edges = torch.arange(self.num_dst, device=self.indptr.device), self.indices.numel()
        destinations = torch.repeat_interleave(rows, self.indptr.diff(), output_size=num_edges)
        return torch.stack([self.indices.long(), destinations])

    def prefix(self, num_dst: int, num_edges: int, num_src: int) -> Adjacency:
        """Return the first `num_dst` rows, with `num_edges` edges. The tensors are views, not copies."""
        edges = self.map(lambda of_edges: of_edges[:num_edges])
        return replace(edges, indptr=self.indptr[: num_dst + 1], num_src=num_src)

    def map(self, change: Change) -> Adjacency:
        """Return the same edges with `change` applied to every tensor."""
        given = _if_given(change)
        edge_ids, columns = given(self.edge_ids), map_all(self.columns, change)
        reverse, weight = given(self.reverse), given(self.weight)
        indptr, indices = change(self.indptr), change(self.indices)
        return Adjacency(indptr, indices, self.num_src, edge_ids, columns, reverse, weight, self.is_padded)


@dataclass(frozen=True)
class Block:
    """One layer's bipartite graph. Destinations are a prefix of the sources of the same node type."""

    adjacencies: Mapping[EdgeType, Adjacency]
    src_counts: Mapping[NodeType, int]
    dst_counts: Mapping[NodeType, int]

    @property
    def adjacency(self) -> Adjacency:
        """The edges, for a graph with one edge type."""
        return only(self.adjacencies, "block.adjacency")

    @property
    def edge_index(self) -> Tensor:
        """int64 (2, edges), for a graph with one edge type."""
        return self.adjacency.edge_index

    @property
    def num_src(self) -> int:
        """Number of source rows, for a graph with one node type."""
        return only(self.src_counts, "block.num_src")

    @property
    def num_dst(self) -> int:
        """Number of destination rows, for a graph with one node type."""
        return only(self.dst_counts, "block.num_dst")

    def map(self, change: Change) -> Block:
        """Return the same block with `change` applied to every tensor."""
        return replace(self, adjacencies={t: a.map(change) for t, a in self.adjacencies.items()})

    def to(self, device: Place) -> Block:
        """Return the same block on another device."""
        return self.map(_mover(device))


@dataclass(frozen=True)
class Subgraph:
    """One graph of all sampled nodes (the subgraph expansion): seeds first, then first-seen order.

    Rows are in local id order. A node is expanded once, at the hop after the hop that found it. The rows that
    a layer needs are therefore a prefix, and a block is a view. Nodes of the last hop have empty rows. If the
    edges differ from the drawn edges (khop.Output), there is no such prefix, and every block is the whole
    graph.
    """

    adjacencies: Mapping[EdgeType, Adjacency]  # rows: all nodes of the destination type
    nodes_per_hop: Mapping[NodeType, tuple[int, ...]]  # new nodes at hop 0 (the seeds), 1, 2, ...
    edges_per_hop: Mapping[EdgeType, tuple[int, ...]] | None  # drawn at hop 1, 2, ...; None: others
    turned: Mapping[EdgeType, EdgeType] = field(default_factory=dict)  # reversed type -> original type

    def blocks(self) -> tuple[Block, ...]:
        """One block per layer, input layer first: views, equal to the subgraph trimmed for each layer."""
        num_hops = len(next(iter(self.nodes_per_hop.values()))) - 1
        if self.edges_per_hop is None:
            counts = {t: sum(of_type) for t, of_type in self.nodes_per_hop.items()}
            return (Block(self.adjacencies, counts, counts),) * num_hops
        return tuple(self._block(depth, self.edges_per_hop) for depth in range(num_hops, 0, -1))

    def map(self, change: Change) -> Subgraph:
        """Return the same subgraph with `change` applied to every tensor."""
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
    """The links of one edge type in a batch, as rows of the model's output (one row per seed).

    A pair gets one score. With binary negatives the links come first, then the negatives of the first link,
    of the second, and so on; among the negatives of a link, destinations come before sources. Otherwise the
    pairs are the links.
    """

    source: Tensor  # int64 (pairs), rows of the source type
    destination: Tensor  # int64 (pairs), rows of the destination type
    positions: Tensor  # int64 (links), in the epoch's global order
    labels: Tensor | None = None  # (pairs, ...): the labels of the links, else 1; 0 for binary negatives
    negatives: Tensor | None = None  # int64 (links, k), rows of the destination type, for triplets
    pairs_per_link: int = 1
    source_negatives: Tensor | None = None  # int64 (links, k), rows of the source type, for triplets
    relations: Tensor | None = None  # int64 (pairs), of links with a relation column
    times: Tensor | None = None  # int64 (links), the time limits of the links

    @property
    def num_links(self) -> int:
        """Number of links, without negatives."""
        return self.positions.numel()

    def map(self, change: Change) -> LinkRows:
        """Return the same links with `change` applied to every tensor."""
        given = _if_given(change)
        ends = change(self.source), change(self.destination), change(self.positions)
        labels, negatives = given(self.labels), given(self.negatives)
        further = given(self.source_negatives), given(self.relations), given(self.times)
        return LinkRows(*ends, labels, negatives, self.pairs_per_link, *further)


@dataclass(frozen=True)
class LossWeights:
    """Weights of the losses of a rank's seeds, and their total over all ranks, known before the step.

    The loss of a step is the sum of weight times loss over the seeds of all ranks, divided by the total: on
    every rank the same number, of the seeds of all ranks (`Seeds.batch_nodes`, `SeedLinks.batch_edges`), or a
    constant of the sampler.
    """

    by_type: Mapping[NodeType | EdgeType, Tensor]  # float (seeds) of a node type, (links) of an edge type
    total: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.total) and self.total > 0):
            raise ValueError(f"total of loss weights {self.total}: must be above 0, and equal on all ranks")

    def map(self, change: Change) -> LossWeights:
        """Return the same weights with `change` applied to every tensor."""
        return LossWeights({t: change(weights) for t, weights in self.by_type.items()}, self.total)

    def per_loss(self, links: Mapping[EdgeType, LinkRows], num_losses: int) -> Tensor:
        """Return the weight of each loss: of each seed, or of each pair in the order of `LinkRows`."""
        found = []
        for type_, weights in self.by_type.items():
            pairs = links[type_].pairs_per_link if isinstance(type_, tuple) else 1
            found.append(torch.cat([weights, weights.repeat_interleave(pairs - 1)]) if pairs > 1 else weights)
        count = sum(weights.numel() for weights in found)
        if count != num_losses:
            raise ValueError(
                f"losses: {num_losses} for {count} loss weights of {list(self.by_type)}; the sampler gives "
                "one weight per seed, and the task one loss per seed or pair"
            )
        return torch.cat(found)


@dataclass(frozen=True)
class Sample:
    """Output of a sampler: the nodes of a batch and the blocks over them, input layer first."""

    nodes: Mapping[NodeType, Tensor]  # int64 (rows), global ids; the position is the local id
    blocks: tuple[Block, ...]
    seed_index: Mapping[NodeType, Tensor]  # int64 (seeds), the local id of each seed, duplicates included
    subgraph: Subgraph | None = None  # of the subgraph expansion; the blocks are then views of it
    trees: Mapping[NodeType, Tensor] | None = None  # int64 (rows), the seed or the group of each node's tree
    links: Mapping[EdgeType, LinkRows] = field(default_factory=dict)  # if seeds are links
    loss_weights: LossWeights | None = None  # None: all seeds count the same
    tuple_labels: Mapping[NodeType, Tensor] = field(default_factory=dict)  # (tuples, ...), see NodeTuples
    num_groups: int | None = None  # of this rank's step, if seeds are groups: losses are then per group

    def weighted(self, losses: Tensor, num_global_seeds: int) -> Tensor:
        """Return losses times their weights, in units in which the total weight is the number of losses.

        `num_global_seeds` counts the seeds of the step over all ranks. The sum over ranks, divided by the
        number of losses, is the weighted mean. Losses without weights are unchanged.
        """
        weights = self.loss_weights
        if weights is None:
            return losses
        # Pairs of a link share its weight, so losses and weights have the same number per seed.
        scale = num_global_seeds / weights.total
        return losses * (weights.per_loss(self.links, losses.numel()).to(losses) * scale)

    def map(self, change: Change) -> Sample:
        """Return the same sample with `change` applied once to every tensor; views remain views."""
        subgraph = None if self.subgraph is None else self.subgraph.map(change)
        blocks = tuple(b.map(change) for b in self.blocks) if subgraph is None else subgraph.blocks()
        trees = None if self.trees is None else map_all(self.trees, change)
        links = {edge_type: rows.map(change) for edge_type, rows in self.links.items()}
        nodes, seed_index = map_all(self.nodes, change), map_all(self.seed_index, change)
        weights = None if self.loss_weights is None else self.loss_weights.map(change)
        further = (links, weights, map_all(self.tuple_labels, change), self.num_groups)
        return Sample(nodes, blocks, seed_index, subgraph, trees, *further)


@dataclass(frozen=True)
class Batch:
    """A sample with its columns. Model output and seed columns have one row per seed, with duplicates.

    Edge columns are stored with the edges: `block.adjacencies[edge_type].columns`.
    """

    sample: Sample
    seed_nodes: Mapping[NodeType, Tensor]  # int64 (seeds), global ids, in the epoch's global order
    columns: Columns  # per node type: column name -> (rows, ...), rows as sample.nodes
    seed_columns: Columns  # per seed node type: column name -> (seeds, ...)
    epoch: int
    step: int
    num_global_seeds: int  # seeds (nodes, links or groups) of this step over all ranks
    world_size: int = 1
    micro_batch: int = 0  # of the step on this rank
    micro_batches: int = 1  # of each step on each rank: their gradients are added
    spans: tuple[Span, ...] = ()  # the time spent making it
    traffic: Mapping[str, float] = field(default_factory=dict)  # data exchanged by this rank for it

    def __getitem__(self, key: str | tuple[NodeType, str]) -> Tensor:
        """Return a column: `batch["x"]` if one node type has it, `batch["item", "x"]` always."""
        return _column(self.columns, key) if isinstance(key, str) else _column(self.columns, key[1], key[0])

    def seed_column(self, name: str, node_type: NodeType | None = None) -> Tensor:
        """Return a column with one row per seed, of the only seed type that has it unless one is named."""
        return _column(self.seed_columns, name, node_type)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """One block per layer, input layer first."""
        return self.sample.blocks

    @property
    def links(self) -> Mapping[EdgeType, LinkRows]:
        """The links of the batch, if seeds are links."""
        return self.sample.links

    @property
    def ends_step(self) -> bool:
        """True if it is the last micro-batch of its step, after which parameters are updated."""
        return self.micro_batch + 1 == self.micro_batches

    @property
    def tuple_labels(self) -> Mapping[NodeType, Tensor]:
        """(tuples, ...), the labels of the batch's tuples, if seeds are `khop.NodeTuples`."""
        return self.sample.tuple_labels

    @property
    def input_nodes(self) -> Tensor:
        """int64 (rows), global ids, for a graph with one node type."""
        return only(self.sample.nodes, "batch.input_nodes")

    @property
    def seeds(self) -> Tensor:
        """int64 (seeds), global ids, for seeds of one node type."""
        return only(self.seed_nodes, "batch.seeds")

    @property
    def seed_index(self) -> Tensor:
        """int64 (seeds), each seed's row in the last layer's output, for seeds of one node type."""
        return only(self.sample.seed_index, "batch.seed_index")

    def global_mean(self, losses: Tensor) -> Tensor:
        """Scale this rank's loss, so that the gradient averaged over ranks is that of the global mean.

        `losses` has one entry per seed or, for links, per pair (see `LinkRows`). Loss weights of the sampler
        count. The sum over the micro-batches of a step is the mean over the step.
        """
        per_seed = max((rows.pairs_per_link for rows in self.links.values()), default=1)
        weighted = self.sample.weighted(losses, self.num_global_seeds)
        return weighted.sum() * (self.world_size / (self.num_global_seeds * per_seed))

    def map(self, change: Change) -> Batch:
        """Return the same batch with `change` applied once to every tensor."""
        return replace(
            self,
            sample=self.sample.map(change),
            seed_nodes=map_all(self.seed_nodes, change),
            columns={t: map_all(c, change) for t, c in self.columns.items()},
            seed_columns={t: map_all(c, change) for t, c in self.seed_columns.items()},
        )

    def to(self, device: Place) -> Batch:
        """Return the same batch on another device."""
        return self.map(_mover(device))


class HasTensors(Protocol):
    """A value made of tensors, such as a batch."""

    def map(self, change: Change) -> Self:
        """Return the same value with `change` applied once to every tensor."""
        ...


def num_bytes(value: HasTensors) -> int:
    """Return the bytes that the tensors of a batch hold; views of the same memory count once."""
    sizes: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    value.map(note)
    return sum(sizes)


def _column(columns: Columns, name: str, node_type: NodeType | None = None) -> Tensor:
    owners = [t for t, of_type in columns.items() if name in of_type and node_type in (None, t)]
    if len(owners) == 1:
        return columns[owners[0]][name]
    if owners:
        raise ValueError(f"column {name!r}: node types {owners} have it in this batch, name one")
    asked = {t: sorted(of_type) for t, of_type in columns.items()}
    of = "" if node_type is None else f" of {node_type!r}"
    raise ValueError(f"column {name!r}{of}: not in this batch; the columns of the loader are {asked}")


def _mover(device: Place) -> Change:
    return lambda tensor: tensor.to(device, non_blocking=True)


def _if_given(change: Change) -> Callable[[Tensor | None], Tensor | None]:
    return lambda tensor: None if tensor is None else change(tensor)


def map_all(tensors: Mapping[str, Tensor], change: Change) -> dict[str, Tensor]:
    """Return the same mapping with `change` applied to every tensor."""
    return {name: change(tensor) for name, tensor in tensors.items()}
