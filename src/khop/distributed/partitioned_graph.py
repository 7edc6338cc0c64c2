"""Edges partitioned across ranks, sampled as if all of them were local.

Negatives drawn from edges that are partitioned across ranks.

Exchange of connectivity between ranks that store partitioned edges, for draws of negatives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from khop.distributed.exchange.codec import check_below
from khop.distributed.exchange.draw_wire import HopWire, IdRanges, NegativeWire
from khop.distributed.exchange.lanes import Lanes
from khop.distributed.exchange.peers import Message, Peers, moved, naming, rounds, sent_to_all
from khop.distributed.partitioned_features import PartitionOwners
from khop.draw import DrawKey, DrawnNegatives, Frontier, FrontierByType, Neighbors, NeighborsByType, Positives
from khop.graph.needs import Need
from khop.graph.negatives import NegativeTables, all_drawn
from khop.graph.partitions.local_partitions import LocalPartitions, Pairs, PartsLinks, check_frontier_nodes
from khop.graph.partitions.parts_folder import PartsFolder
from khop.graph.rule import Hop
from khop.graph.rule_arrays import check_edge_type, check_hop
from khop.graph.store import NumberedGraph, NumberedNodes
from khop.kernels.draw_negatives import NothingLeft
from khop.kernels.owners import ByOwner, first_outside
from khop.schema import EdgeType, NodeType, Schema

_MOST_BYTES = 1 << 32  # limit of a request or an answer; no batch reaches it


COUNTING = Message("counting the edges of nodes", "id")
CONNECTING = Message("getting the partners of nodes", "id")
_MOST_EDGES = 1 << 48


@dataclass(frozen=True)
class RankLinks:
    """Edge counts and edges of other ranks, exchanged once. Collective.

    Each rank sends the data of its partitions and keeps the received data. The exchange happens at the first
    draw that needs it, so this draw has to be outside of lanes.
    """

    folder: PartsFolder  # with the partitions of this rank
    holders: PartitionOwners
    lanes: Lanes

    def counted(self, edge_type: EdgeType, own: Tensor) -> Tensor:
        """Return the count of each destination as its owner has it, int64 (nodes).

        `own` are the counts of the nodes stored on this rank.
        """
        peers = self._peers(f"the numbers of edges of {edge_type}")
        return of_all_nodes(peers, self.holders, self.folder.book.offsets[edge_type[2]], own)

    def connected(self, edge_type: EdgeType, own: Pairs) -> Pairs:
        """Return the edges with their source on this rank, from the edges of all ranks by destination."""
        peers, count = (
            self._peers(f"the partners of nodes by {edge_type}"),
            self.folder.num_nodes(edge_type[2]),
        )
        bounds = self.folder.book.offsets[edge_type[0]]
        spans = [self.holders.held(bounds, rank) for rank in range(self.holders.world_size)]
        first, end = spans[self.holders.rank]
        pairs = torch.stack(own, dim=1)
        if not self.holders.is_first:  # another rank sends the same
            pairs = pairs[:0]
        received = [pairs[:0]]
        for turn in rounds(peers, pairs.shape[0], CONNECTING):
            sent = pairs[turn]
            of_ranks = [sent[(sent[:, 0] >= low) & (sent[:, 0] < high)] for low, high in spans]
            for rank, found in enumerate(moved(peers, of_ranks, CONNECTING)):
                with naming(peers, rank, CONNECTING):
                    check_below(found[:, 0] - first, end - first, "source")
                    check_below(found[:, 1], count, "destination")
                received.append(found)
        sources, destinations = torch.cat(received).unbind(1)
        return sources.contiguous(), destinations.contiguous()

    def _peers(self, what: str) -> Peers:
        if self.lanes.is_lane:
            raise ValueError(
                f"{what}: the ranks must exchange this before batches are made. A khop.Loader "
                "of a khop.LinkSampler does so; otherwise first draw negatives for no links, on all ranks"
            )
        return self.lanes.peers


def of_all_nodes(peers: Peers, holders: PartitionOwners, bounds: Sequence[int], counts: Tensor) -> Tensor:
    """Return the count of each node of a type as its owner has it, int64 (nodes). Collective.

    `bounds` hold the first node of each partition, and the end of the last.
    """

    def check(of_rank: Tensor) -> None:
        check_below(of_rank, _MOST_EDGES, "number of edges")

    return rows_of_all_nodes(peers, holders, bounds, counts, COUNTING, check)


def rows_of_all_nodes(
    peers: Peers,
    holders: PartitionOwners,
    bounds: Sequence[int],
    rows: Tensor,
    message: Message,
    check: Callable[[Tensor], None] = lambda of_rank: None,
) -> Tensor:
    """Return the row of each node of a type as its owner has it, (nodes, ...). Collective.

    `rows` belong to the nodes stored on this rank, in order. `check` raises ValueError for bad rows.
    """
    found = rows.new_empty(bounds[-1], *rows.shape[1:])
    for rank, of_rank in enumerate(sent_to_all(peers, rows, message)):
        first, end = holders.held(bounds, rank)
        with naming(peers, rank, message):
            if of_rank.shape[0] != end - first:
                raise ValueError(f"{of_rank.shape[0]} numbers, where {end - first} nodes are")
            check(of_rank)
        found[first:end] = of_rank
    return found


ASKING_NEGATIVES = Message("asking for negatives", "id")
GETTING = Message("getting negatives", "id")


@dataclass(frozen=True, eq=False)
class RankNegatives:
    """Draws of negatives from partitioned edges.

    Exact negatives are drawn by the owners of the sources, in three collectives. All others are drawn on this
    rank.
    """

    held: LocalPartitions
    holders: PartitionOwners
    lanes: Lanes
    candidates: Mapping[NodeType, Tensor] = field(default_factory=dict)  # bool (nodes): drawn; default: all
    _tables: NegativeTables = field(init=False, repr=False)

    def __post_init__(self) -> None:
        held, folder = self.held, self.held.folder
        counts = {node_type: folder.num_nodes(node_type) for node_type in held.schema.node_types}
        links = PartsLinks(held, RankLinks(folder, self.holders, self.lanes))
        tables = NegativeTables(counts, held.nodes.originals, folder.columns(), links, self.candidates)
        object.__setattr__(self, "_tables", tables)

    def draw(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """Draw destinations, int64 (links, per_positive); see GraphStore.

        ValueError if a source does not exist.
        """
        if not negatives.exact:
            return self._tables.draw(edge_type, negatives, positives, key)
        source, _, destination = edge_type
        folder = self.held.folder
        position = first_outside(positives.sources, (0, folder.num_nodes(source)))
        if position >= 0:
            raise ValueError(
                f"negatives of {edge_type}: source {int(positives.sources[position])}: there are "
                f"{folder.num_nodes(source)} {source!r} nodes"
            )
        self._tables.prepare(edge_type, negatives, positives)
        wire = NegativeWire.of(edge_type, negatives, positives, key, folder.num_nodes(destination))
        owners = ByOwner.of(positives.sources, self.holders.bounds(folder.book.offsets[source]))
        shares = owners.positives(positives)
        peers = self.lanes.peers
        with peers.turn:  # held until all results are copied out of the received messages
            drawn = self._drawn(peers, wire, edge_type, negatives, shares, key)
            by_rank = zip(drawn, shares, strict=True)
            return owners.joined([all_drawn(of, edge_type, negatives, share) for of, share in by_rank])

    def _drawn(
        self,
        peers: Peers,
        wire: NegativeWire,
        edge_type: EdgeType,
        negatives: DrawnNegatives,
        shares: Sequence[Positives],
        key: DrawKey,
    ) -> list[Tensor | NothingLeft]:
        """Return the draws of every rank for this one, and draw for the others."""
        bounds = self.held.folder.book.offsets[edge_type[0]]
        spans = [self.holders.held(bounds, rank) for rank in range(len(shares))]
        own, nothing = self.holders.rank, torch.empty(0, dtype=torch.uint8)
        requests = [
            nothing if rank == own else wire.request(share, spans[rank]) for rank, share in enumerate(shares)
        ]
        answers: list[Tensor] = []
        for rank, message in enumerate(peers.exchange(requests, ASKING_NEGATIVES, _MOST_BYTES)):
            if rank == own:
                answers.append(nothing)
                continue
            with naming(peers, rank, ASKING_NEGATIVES):
                asked = wire.positives(message, spans[own])
            drawn = self._tables.drawn(edge_type, negatives, asked, key)
            answers.append(wire.answer(drawn, asked.sources.numel()))
        mine = self._tables.drawn(edge_type, negatives, shares[own], key)
        links = [share.sources.numel() for share in shares]
        sizes = [0 if rank == own else wire.size(count) for rank, count in enumerate(links)]
        found: list[Tensor | NothingLeft] = []
        for rank, message in enumerate(peers.reply(answers, sizes, GETTING)):
            with naming(peers, rank, GETTING):
                found.append(mine if rank == own else wire.drawn(message, links[rank]))
        return found


ASKING = Message("asking for edges", "id")
ANSWERING = Message("getting edges", "id")


@dataclass(frozen=True, eq=False)
class HopShares:
    """The frontier of a hop by owner. An owner is a rank, or a part that servers have."""

    wire: HopWire
    owners: Mapping[NodeType, ByOwner]
    frontiers: Mapping[NodeType, Sequence[Frontier]]  # by owner

    @classmethod
    def of(
        cls,
        frontier: FrontierByType,
        hop: Hop,
        key: DrawKey,
        held: LocalPartitions,
        num_edges: Mapping[EdgeType, int],
        bounds: Mapping[NodeType, Sequence[int]],
    ) -> HopShares:
        """Check a hop, and divide its frontier.

        `num_edges` are the edges of all parts. Owner q has the nodes from bound q on. ValueError for a hop or
        a node that the graph does not have.
        """
        check_hop(frontier, hop, held.schema)
        check_frontier_nodes(frontier, hop, held.nodes)
        wire = HopWire.of(frontier, hop, key, held.nodes.counts, num_edges)
        owners = {t: ByOwner.of(frontier[t].nodes, bounds[t]) for t in wire.node_types}
        return cls(wire, owners, {t: of_type.frontiers(frontier[t]) for t, of_type in owners.items()})

    def frontier(self, owner: int) -> dict[NodeType, Frontier]:
        """Return the frontier of an owner."""
        return {t: of_owners[owner] for t, of_owners in self.frontiers.items()}

    def counts(self, owner: int) -> dict[NodeType, int]:
        """Return the number of frontier nodes of an owner, by type."""
        return {t: of_owners[owner].nodes.numel() for t, of_owners in self.frontiers.items()}

    def joined(self, drawn: Sequence[NeighborsByType]) -> NeighborsByType:
        """Return the neighbors of the whole frontier, in its order; `drawn` are those of each owner."""
        return {t: self.owners[t[2]].neighbors([of_owner[t] for of_owner in drawn]) for t in self.wire.most}


@dataclass(frozen=True, eq=False)
class PartitionedGraph(NumberedGraph):
    """A graph store over edges partitioned across ranks.

    A hop is collective; each rank may have any frontier. All ranks make the same hops with the same keys. A
    hop takes three collectives for all edge types together: sizes of requests, frontiers, and drawn
    neighbors. If rows may have more than `MOST_PADDED` edges, it takes four: answers then state their sizes.
    Draws equal the draws of the graph before partitioning.
    """

    held: LocalPartitions  # the partitions of this rank
    holders: PartitionOwners
    lanes: Lanes
    candidates: Mapping[NodeType, Tensor] = field(default_factory=dict)  # bool (nodes): drawn as negatives
    schema: Schema = field(init=False, repr=False)
    nodes: NumberedNodes = field(init=False, repr=False)
    _num_edges: Mapping[EdgeType, int] = field(init=False, repr=False)  # in all partitions, left out or not
    _bounds: Mapping[NodeType, Sequence[int]] = field(init=False, repr=False)  # rank q is asked from bound q
    _spans: Sequence[IdRanges] = field(init=False, repr=False)  # the ids that each rank stores
    _negatives: RankNegatives = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", self.held.schema)
        object.__setattr__(self, "nodes", self.held.nodes)
        counts = {t: self.held.folder.num_edges(t) for t in self.schema.edge_types}
        object.__setattr__(self, "_num_edges", counts)
        offsets, ranks = self.nodes.bounds, range(self.holders.world_size)
        bounds = {t: self.holders.bounds(of_type) for t, of_type in offsets.items()}
        spans = [{t: self.holders.held(of_type, rank) for t, of_type in offsets.items()} for rank in ranks]
        object.__setattr__(self, "_bounds", bounds)
        object.__setattr__(self, "_spans", spans)
        negatives = RankNegatives(self.held, self.holders, self.lanes, self.candidates)
        object.__setattr__(self, "_negatives", negatives)

    @property
    def is_collective(self) -> bool:
        """True: a hop asks other ranks."""
        return True

    def num_edges(self, edge_type: EdgeType) -> int:
        """Return the number of edges of a type in all partitions; Unsupported if some are left out."""
        self.held.check_unthinned(edge_type)
        return self._num_edges[edge_type]

    def prepare(self, needs: Collection[Need]) -> None:
        """Build now the arrays that draws need. Collective; see GraphStore."""
        self.held.prepare(needs)
        super().prepare(needs)

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw in-edges of every frontier node; see GraphStore."""
        shares = HopShares.of(frontier, hop, key, self.held, self._num_edges, self._bounds)
        peers = self.lanes.peers
        with peers.turn:  # held until all results are copied out of the received messages
            exchange = _HopExchange(peers, shares, self._spans)
            drawn = _drawn_for_all(self.held, shares.wire, exchange.asked(), hop, key)
            return shares.joined(exchange.answers(drawn))

    def sample_negatives(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """Draw destinations for the sources of links; see GraphStore.

        Exact negatives are drawn by the owners of the sources, in three collectives. All others are drawn on
        this rank. The first draw of a kind exchanges the data that it needs; see `RankLinks`.
        """
        check_edge_type(edge_type, self.schema)
        return self._negatives.draw(edge_type, negatives, positives, key)

    def only(self, edge_types: Collection[EdgeType]) -> PartitionedGraph:
        """Return the same graph with only these edge types, and the node types at their ends."""
        return replace(self, held=self.held.only(edge_types))

    def keeping(self, kept: Mapping[EdgeType, Sequence[Tensor]]) -> PartitionedGraph:
        """Return the graph with only the given edges of some types; see `LocalPartitions`.

        Each rank gives the edges to keep in its partitions.
        """
        return replace(self, held=self.held.keeping(kept))

    def drawing_from(self, candidates: Mapping[NodeType, Tensor]) -> PartitionedGraph:
        """Return the same graph; negatives are drawn from the marked nodes of some types: bool (nodes)."""
        return replace(self, candidates={**self.candidates, **candidates})


@dataclass(frozen=True, eq=False)
class _HopExchange:
    """The messages of one hop between ranks. The share of this rank is not sent."""

    peers: Peers
    shares: HopShares  # of the frontier of this rank, by the rank that stores them
    spans: Sequence[IdRanges]  # ids that each rank stores

    def asked(self) -> list[FrontierByType]:
        """Exchange requests; return the frontier of each rank."""
        own, wire = self.peers.rank, self.shares.wire
        requests = [
            torch.empty(0, dtype=torch.uint8)
            if rank == own
            else wire.request(self.shares.frontier(rank), span)
            for rank, span in enumerate(self.spans)
        ]
        asked: list[FrontierByType] = []
        for rank, message in enumerate(self.peers.exchange(requests, ASKING, _MOST_BYTES)):
            if rank == own:
                asked.append(self.shares.frontier(own))
                continue
            with naming(self.peers, rank, ASKING):
                asked.append(wire.frontier(message, self.spans[own]))
        return asked

    def answers(self, drawn: list[NeighborsByType]) -> list[NeighborsByType]:
        """Send drawn neighbors; return the neighbors that every rank has drawn for this one."""
        own, wire, peers = self.peers.rank, self.shares.wire, self.peers
        answers = peers.outgoing([0 if rank == own else wire.size_of(of) for rank, of in enumerate(drawn)])
        for rank, of_rank in enumerate(drawn):
            if rank != own:
                wire.write(of_rank, answers.payloads[rank])
        counts = [self.shares.counts(rank) for rank in range(len(drawn))]
        if wire.is_bounded:
            sizes = [0 if rank == own else wire.size(rows) for rank, rows in enumerate(counts)]
            received = peers.reply(answers, sizes, ANSWERING)
        else:
            received = peers.exchange(answers, ANSWERING, _MOST_BYTES)
        found: list[NeighborsByType] = []
        for rank, message in enumerate(received):
            if rank == own:
                found.append(drawn[own])
                continue
            with naming(peers, rank, ANSWERING):
                found.append(wire.neighbors(message, counts[rank]))
        return found


def _drawn_for_all(
    held: LocalPartitions, wire: HopWire, asked: list[FrontierByType], hop: Hop, key: DrawKey
) -> list[NeighborsByType]:
    """Draw for all ranks in one call; return the neighbors of each."""
    together = {t: _joined([of_rank[t] for of_rank in asked]) for t in wire.node_types}
    drawn = held.sample_hop(together, hop, key)
    counts = {t: [of_rank[t].nodes.numel() for of_rank in asked] for t in wire.node_types}
    pieces = {t: _cut(found, counts[t[2]]) for t, found in drawn.items()}
    return [{t: of_ranks[rank] for t, of_ranks in pieces.items()} for rank in range(len(asked))]


def _joined(frontiers: list[Frontier]) -> Frontier:
    """Concatenate frontiers."""
    fields = {name: [of_rank.fields[name] for of_rank in frontiers] for name in frontiers[0].fields}
    nodes = torch.cat([of_rank.nodes for of_rank in frontiers])
    return Frontier(nodes, **{name: torch.cat(of_ranks) for name, of_ranks in fields.items()})


def _cut(drawn: Neighbors, counts: list[int]) -> list[Neighbors]:
    """Split drawn neighbors into pieces of these row counts."""
    found, row = [], 0
    for count in counts:
        offsets = drawn.offsets[row : row + count + 1]
        begin, end = int(offsets[0]), int(offsets[-1])
        edges = None if drawn.edges is None else drawn.edges[begin:end]
        weights = None if drawn.weights is None else drawn.weights[begin:end]
        found.append(Neighbors(offsets - begin, drawn.nodes[begin:end], edges, weights))
        row += count
    return found
