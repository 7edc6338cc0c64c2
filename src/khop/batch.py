"""Batches of a loader: blocks, node ids, columns and seeds, with local ids.

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
    part: str = ""  # part of the stage: "backward" of "computing"

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
    """The edges of one type in a block, in CSC order: row i has the in-edges of destination i.

    Args:
        indptr: Start of each row, then the end of the last one, int64 (num_dst + 1).
        indices: Local ids of the sources, int32 (edges).
        num_src: Number of source rows.
        edge_ids: Positions in the graph's CSC order, int64 (edges). None (default): the sampler does not
            return edge ids.
        columns: Edge columns (edges, ...) by name; default none.
        reverse: For bidirectional output, True where the edge was reversed, bool (edges); default None.
        weight: Final coefficients of a sum, float32 (edges). None (default): neighbors are averaged.
        is_padded: True for a static shape, in which entries of edges after `indptr[-1]` are unused; default
            False.
        elapsed: Time limit of the row minus the time of the edge, int64 (edges): `Temporal(elapsed=True)`
            and `Temporal(limit="edge")` give it; 0 for edges without a time. Default None.
    Example:
        >>> edges = khop.Adjacency(torch.tensor([0, 2, 3]), torch.tensor([1, 2, 0]), num_src=3)
        >>> edges.edge_index
        tensor([[1, 2, 0],
                [0, 0, 1]])
    """

    indptr: Tensor
    indices: Tensor
    num_src: int
    edge_ids: Tensor | None = None
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    reverse: Tensor | None = None
    weight: Tensor | None = None
    is_padded: bool = False
    elapsed: Tensor | None = None

    @property
    def num_dst(self) -> int:
        """Number of destinations, with and without edges."""
        return self.indptr.numel() - 1

    @property
    def edge_index(self) -> Tensor:
        """int64 (2, edges): sources and destinations, as in torch_geometric. Computed on each access.

        Raises:
            RuntimeError: Some edges are unused, as in recorded steps, and have no destination.
        """
        if self.is_padded:
            raise RuntimeError('edge_index: a static shape has unused edges; set launches="single"')
        rows, num_edges = torch.arange(self.num_dst, device=self.indptr.device), self.indices.numel()
        destinations = torch.repeat_interleave(rows, self.indptr.diff(), output_size=num_edges)
        return torch.stack([self.indices.long(), destinations])

    def prefix(self, num_dst: int, num_edges: int, num_src: int) -> Adjacency:
        """Return the first rows as views.

        Args:
            num_dst: Number of rows to keep.
            num_edges: Number of edges in these rows.
            num_src: Number of source rows of the result.
        """
        edges = self.map(lambda of_edges: of_edges[:num_edges])
        return replace(edges, indptr=self.indptr[: num_dst + 1], num_src=num_src)

    def map(self, change: Change) -> Adjacency:
        """Return the same edges with a function applied to every tensor.

        Args:
            change: Function from a tensor to a tensor.
        """
        given = _if_given(change)
        edge_ids, columns = given(self.edge_ids), map_all(self.columns, change)
        more = given(self.reverse), given(self.weight), self.is_padded, given(self.elapsed)
        return Adjacency(change(self.indptr), change(self.indices), self.num_src, edge_ids, columns, *more)


@dataclass(frozen=True)
class Block:
    """One layer's bipartite graph, whose destinations are a prefix of the sources of the same node type.

    Args:
        adjacencies: Edges by edge type.
        src_counts: Number of source rows by node type.
        dst_counts: Number of destination rows by node type.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> loader = khop.Loader(khop.NeighborSampler(graph, [5, 5]), seeds=range(64), batch_size=64)
        >>> outer, inner = loader.batch(epoch=0, step=0).blocks
        >>> outer.num_dst == inner.num_src, inner.num_dst
        (True, 64)
    """

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
        """Return the same block with a function applied to every tensor.

        Args:
            change: Function from a tensor to a tensor.
        """
        return replace(self, adjacencies={t: a.map(change) for t, a in self.adjacencies.items()})

    def to(self, device: Place) -> Block:
        """Return the same block on another device.

        Args:
            device: The device.
        """
        return self.map(_mover(device))


@dataclass(frozen=True)
class Subgraph:
    """One graph of all sampled nodes (the subgraph expansion): seeds first, then first-seen order.

    A node is expanded once, at the hop after the one that found it. The rows that a layer needs are
    therefore a prefix, and a block is a view. Nodes of the last hop have empty rows. If the edges differ
    from the drawn edges (`khop.Output`), there is no such prefix, and every block is the whole graph.

    Args:
        adjacencies: Edges by type, with a row for each node of the destination type, in local id order.
        nodes_per_hop: Number of new nodes at hop 0 (the seeds), 1, 2, ... by node type.
        edges_per_hop: Number of edges drawn at hop 1, 2, ... by edge type. None: the edges are not the
            drawn ones.
        turned: Original edge type of each reversed edge type; default none.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> sampler = khop.NeighborSampler(graph, [3, 3], expansion="subgraph")
        >>> batch = khop.Loader(sampler, seeds=range(64), batch_size=64).batch(epoch=0, step=0)
        >>> subgraph = batch.sample.subgraph
        >>> subgraph.nodes_per_hop["package"][0], len(subgraph.blocks())
        (64, 2)
    """

    adjacencies: Mapping[EdgeType, Adjacency]
    nodes_per_hop: Mapping[NodeType, tuple[int, ...]]
    edges_per_hop: Mapping[EdgeType, tuple[int, ...]] | None
    turned: Mapping[EdgeType, EdgeType] = field(default_factory=dict)

    def blocks(self) -> tuple[Block, ...]:
        """Return one block per layer, input layer first, as views of the subgraph trimmed for the layer."""
        num_hops = len(next(iter(self.nodes_per_hop.values()))) - 1
        if self.edges_per_hop is None:
            counts = {t: sum(of_type) for t, of_type in self.nodes_per_hop.items()}
            return (Block(self.adjacencies, counts, counts),) * num_hops
        return tuple(self._block(depth, self.edges_per_hop) for depth in range(num_hops, 0, -1))

    def map(self, change: Change) -> Subgraph:
        """Return the same subgraph with a function applied to every tensor.

        Args:
            change: Function from a tensor to a tensor.
        """
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

    A pair gets one score. With binary negatives the links come first, then the negatives of the first
    link, of the second, and so on; among the negatives of a link, destinations come before sources.
    Otherwise the pairs are the links.

    Args:
        source: Rows of the source type, int64 (pairs).
        destination: Rows of the destination type, int64 (pairs).
        positions: Positions of the links in the epoch's global order, int64 (links).
        labels: Labels (pairs, ...): those of the links, or else 1; 0 for binary negatives. None
            (default): no labels.
        negatives: For triplets, rows of the destination type, int64 (links, k); default None.
        pairs_per_link: Number of pairs per link, 1 (default) without binary negatives.
        source_negatives: For triplets, rows of the source type, int64 (links, k); default None.
        relations: Relations, int64 (pairs), of links with a relation column; default None.
        times: Time limits of the links, int64 (links); default None.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> sampler = khop.LinkSampler(graph, [5], negatives=khop.UniformNegatives())
        >>> batch = khop.Loader(sampler, khop.Links([[0, 1], [2, 3]]), batch_size=2).batch(epoch=0, step=0)
        >>> batch.links["package", "linked", "package"].labels
        tensor([1., 1., 0., 0.])
    """

    source: Tensor
    destination: Tensor
    positions: Tensor
    labels: Tensor | None = None
    negatives: Tensor | None = None
    pairs_per_link: int = 1
    source_negatives: Tensor | None = None
    relations: Tensor | None = None
    times: Tensor | None = None

    @property
    def num_links(self) -> int:
        """Number of links, without negatives."""
        return self.positions.numel()

    def map(self, change: Change) -> LinkRows:
        """Return the same links with a function applied to every tensor.

        Args:
            change: Function from a tensor to a tensor.
        """
        given = _if_given(change)
        ends = change(self.source), change(self.destination), change(self.positions)
        labels, negatives = given(self.labels), given(self.negatives)
        further = given(self.source_negatives), given(self.relations), given(self.times)
        return LinkRows(*ends, labels, negatives, self.pairs_per_link, *further)


@dataclass(frozen=True)
class LossWeights:
    """Weights of the losses of a rank's seeds, and their total over all ranks, known before the step.

    The loss of a step is the sum of weight times loss over the seeds of all ranks, divided by the total.

    Args:
        by_type: Weights, float (seeds) of a node type, (links) of an edge type.
        total: Sum of the weights over the seeds of all ranks (`Seeds.batch_nodes`,
            `SeedLinks.batch_edges`), or a constant of the sampler; above 0, and equal on all ranks.
    Raises:
        ValueError: The total is not a positive, finite number.
    Example:
        >>> weights = khop.LossWeights({"item": torch.tensor([0.5, 2.0])}, total=2.5)
        >>> weights.per_loss({}, num_losses=2)
        tensor([0.5000, 2.0000])
    """

    by_type: Mapping[NodeType | EdgeType, Tensor]
    total: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.total) and self.total > 0):
            raise ValueError(f"total of loss weights {self.total}: must be above 0, and equal on all ranks")

    def map(self, change: Change) -> LossWeights:
        """Return the same weights with a function applied to every tensor.

        Args:
            change: Function from a tensor to a tensor.
        """
        return LossWeights({t: change(weights) for t, weights in self.by_type.items()}, self.total)

    def per_loss(self, links: Mapping[EdgeType, LinkRows], num_losses: int) -> Tensor:
        """Return the weight of each loss: of each seed, or of each pair in the order of `LinkRows`.

        Args:
            links: Links of the batch by edge type.
            num_losses: Number of losses, for the check.
        """
        found = []
        for type_, weights in self.by_type.items():
            pairs = links[type_].pairs_per_link if isinstance(type_, tuple) else 1
            found.append(torch.cat([weights, weights.repeat_interleave(pairs - 1)]) if pairs > 1 else weights)
        count = sum(weights.numel() for weights in found)
        if count != num_losses:
            raise ValueError(
                f"losses: {num_losses} for {count} loss weights of {list(self.by_type)}; the sampler must "
                "return one weight per seed, and the task one loss per seed or pair"
            )
        return torch.cat(found)


@dataclass(frozen=True)
class Sample:
    """Output of a sampler: the nodes of a batch and its blocks, input layer first.

    Args:
        nodes: Global ids by node type, int64 (rows); the position is the local id.
        blocks: One block per layer, input layer first.
        seed_index: Local id of each seed by node type, int64 (seeds), duplicates included.
        subgraph: Subgraph of the subgraph expansion, of which the blocks are views; default None.
        trees: Seed or group of each node's tree by node type, int64 (rows), for disjoint trees. None
            (default): trees are merged.
        links: Rows of the links by edge type, if seeds are links; default none.
        loss_weights: Weights of the seeds in the loss. None (default): equal weights.
        tuple_labels: Labels (tuples, ...) by node type, if seeds are `khop.NodeTuples`; default none.
        num_groups: Number of groups in this rank's step, if seeds are groups, which have one loss each;
            default None.
        seed_positions: Positions of seed nodes in the epoch's global order by node type, int64 (seeds), in
            batches of a loader; default none.
        seed_times: Times of seed nodes by node type, int64 (seeds), if they have them; default none.
        seed_labels: Labels (seeds, ...) by node type, if seeds are a `khop.SeedTable`; default none.
    Example:
        >>> sampler = khop.NeighborSampler(khop.open_graph("debian"), [2])
        >>> seeds = khop.Seeds({"package": torch.tensor([7, 9])}, {"package": torch.tensor([0, 1])})
        >>> sample = sampler.sample(seeds, khop.DrawKey(1))
        >>> sample.seed_index, sample.nodes["package"][:2]
        ({'package': tensor([0, 1])}, tensor([7, 9]))
    """

    nodes: Mapping[NodeType, Tensor]
    blocks: tuple[Block, ...]
    seed_index: Mapping[NodeType, Tensor]
    subgraph: Subgraph | None = None
    trees: Mapping[NodeType, Tensor] | None = None
    links: Mapping[EdgeType, LinkRows] = field(default_factory=dict)
    loss_weights: LossWeights | None = None
    tuple_labels: Mapping[NodeType, Tensor] = field(default_factory=dict)
    num_groups: int | None = None
    seed_positions: Mapping[NodeType, Tensor] = field(default_factory=dict)
    seed_times: Mapping[NodeType, Tensor] = field(default_factory=dict)
    seed_labels: Mapping[NodeType, Tensor] = field(default_factory=dict)

    def weighted(self, losses: Tensor, num_global_seeds: int) -> Tensor:
        """Return losses times their weights, scaled so that the total weight is the number of losses.

        The sum over ranks, divided by the number of losses, is the weighted mean. Losses without weights
        are unchanged.

        Args:
            losses: One loss per seed, or per pair of links.
            num_global_seeds: Number of seeds of the step over all ranks.
        """
        weights = self.loss_weights
        if weights is None:
            return losses
        # Pairs of a link share its weight, so the numbers of losses and weights per seed are equal.
        scale = num_global_seeds / weights.total
        return losses * (weights.per_loss(self.links, losses.numel()).to(losses) * scale)

    def map(self, change: Change) -> Sample:
        """Return the same sample with a function applied once to every tensor; views remain views.

        Args:
            change: Function from a tensor to a tensor.
        """
        subgraph = None if self.subgraph is None else self.subgraph.map(change)
        blocks = tuple(b.map(change) for b in self.blocks) if subgraph is None else subgraph.blocks()
        trees = None if self.trees is None else map_all(self.trees, change)
        links = {edge_type: rows.map(change) for edge_type, rows in self.links.items()}
        nodes, seed_index = map_all(self.nodes, change), map_all(self.seed_index, change)
        weights = None if self.loss_weights is None else self.loss_weights.map(change)
        further = (links, weights, map_all(self.tuple_labels, change), self.num_groups)
        of_seeds = [map_all(of, change) for of in (self.seed_positions, self.seed_times, self.seed_labels)]
        return Sample(nodes, blocks, seed_index, subgraph, trees, *further, *of_seeds)


@dataclass(frozen=True)
class Batch:
    """A sample with its columns.

    Model output and seed columns have one row per seed, with duplicates.
    `batch["x"]` is a column of the only node type that has it, and `batch["item", "x"]` a column of a
    named type. Edge columns are stored with the edges: `block.adjacencies[edge_type].columns`.

    Args:
        sample: Nodes and blocks.
        seed_nodes: Global ids by node type, int64 (seeds), in the epoch's global order.
        columns: Columns (rows, ...) by node type and name, rows in the order of `sample.nodes`.
        seed_columns: Columns (seeds, ...) by node type and name.
        epoch: Epoch, from 0.
        step: Step within the epoch, from 0.
        num_global_seeds: Number of seeds (nodes, links or groups) of this step over all ranks.
        world_size: Number of ranks that divide the step; default 1.
        micro_batch: Number of this micro-batch within the step of this rank, from 0; default 0.
        micro_batches: Number of micro-batches of each step, whose gradients are added; default 1.
        spans: Time spent to make the batch; default none.
        traffic: Data exchanged by this rank to make the batch, by name; default none.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> loader = khop.Loader(khop.NeighborSampler(graph, [5]), range(64), 64, columns=["x"])
        >>> batch = loader.batch(epoch=0, step=0)
        >>> batch["x"].shape == (batch.input_nodes.numel(), 512), batch.seeds[:3]
        (True, tensor([0, 1, 2]))
    """

    sample: Sample
    seed_nodes: Mapping[NodeType, Tensor]
    columns: Columns
    seed_columns: Columns
    epoch: int
    step: int
    num_global_seeds: int
    world_size: int = 1
    micro_batch: int = 0
    micro_batches: int = 1
    spans: tuple[Span, ...] = ()
    traffic: Mapping[str, float] = field(default_factory=dict)

    def __getitem__(self, key: str | tuple[NodeType, str]) -> Tensor:
        """Return a column: `batch["x"]` if one node type has it, `batch["item", "x"]` always."""
        return _column(self.columns, key) if isinstance(key, str) else _column(self.columns, key[1], key[0])

    def seed_column(self, name: str, node_type: NodeType | None = None) -> Tensor:
        """Return a column with one row per seed.

        Args:
            name: Name of the column.
            node_type: Node type of the seeds; by default the only one that has the column.
        """
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

    @property
    def seed_positions(self) -> Tensor:
        """int64 (seeds), each seed's position in the epoch's global order, for seeds of one node type."""
        return only(self.sample.seed_positions, "batch.seed_positions")

    @property
    def seed_times(self) -> Tensor:
        """int64 (seeds), each seed's time, for seeds of one node type; ValueError if they have no times."""
        if not self.sample.seed_times:
            raise ValueError("batch.seed_times: the seeds have no times; give the loader seed_times=...")
        return only(self.sample.seed_times, "batch.seed_times")

    @property
    def seed_weights(self) -> Tensor:
        """float (seeds), each seed's weight in the loss, for one node type; ValueError without weights."""
        if self.sample.loss_weights is None:
            raise ValueError(
                "batch.seed_weights: the seeds have no weights; give a khop.SeedTable with weights"
            )
        of_nodes = {t: of for t, of in self.sample.loss_weights.by_type.items() if isinstance(t, str)}
        return only(of_nodes, "batch.seed_weights")

    def global_mean(self, losses: Tensor) -> Tensor:
        """Return this rank's loss, scaled so that the average over ranks is the mean over the global batch.

        Loss weights of the sampler are applied. With micro-batches, the sum over a step is the mean over
        the step. If edge types have different numbers of binary negatives, each link counts equally, with
        the mean over its pairs.

        Args:
            losses: One loss per seed or, for links, per pair (see `LinkRows`).
        """
        pairs = {t: rows.pairs_per_link for t, rows in self.links.items()}
        per_seed = max(pairs.values(), default=1)
        weighted = self.sample.weighted(losses, self.num_global_seeds)
        if any(count < per_seed for count in pairs.values()):
            shares = [
                weighted.new_full(rows.source.shape, per_seed / pairs[t]) for t, rows in self.links.items()
            ]
            weighted = weighted * torch.cat(shares)
        return weighted.sum() * (self.world_size / (self.num_global_seeds * per_seed))

    def map(self, change: Change) -> Batch:
        """Return the same batch with a function applied once to every tensor.

        Args:
            change: Function from a tensor to a tensor.
        """
        return replace(
            self,
            sample=self.sample.map(change),
            seed_nodes=map_all(self.seed_nodes, change),
            columns={t: map_all(c, change) for t, c in self.columns.items()},
            seed_columns={t: map_all(c, change) for t, c in self.seed_columns.items()},
        )

    def to(self, device: Place) -> Batch:
        """Return the same batch on another device.

        Args:
            device: The device.
        """
        return self.map(_mover(device))


class HasTensors(Protocol):
    """A value made of tensors, such as a batch."""

    def map(self, change: Change) -> Self:
        """Return the same value with `change` applied once to every tensor."""
        ...


def num_bytes(value: HasTensors) -> int:
    """Return the size of the tensors of a batch in bytes; views of the same memory are counted once."""
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
        raise ValueError(f"column {name!r}: node types {owners} have it in this batch; name one")
    asked = {t: sorted(of_type) for t, of_type in columns.items()}
    of = "" if node_type is None else f" of {node_type!r}"
    raise ValueError(f"column {name!r}{of}: not in this batch; the loader's columns are {asked}")


def _mover(device: Place) -> Change:
    return lambda tensor: tensor.to(device, non_blocking=True)


def _if_given(change: Change) -> Callable[[Tensor | None], Tensor | None]:
    return lambda tensor: None if tensor is None else change(tensor)


def map_all(tensors: Mapping[str, Tensor], change: Change) -> dict[str, Tensor]:
    """Return the same mapping with `change` applied to every tensor."""
    return {name: change(tensor) for name, tensor in tensors.items()}
