"""Graph store over edges partitioned across owners: sampling and negatives, as if all edges were local."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from khop.distributed.exchange.draw_wire import HopWire, IdRange, IdRanges, NegativeWire
from khop.distributed.exchange.peers import Message, check_below
from khop.distributed.owners import (
    MOST_EDGES,
    NO_BYTES,
    EdgeSources,
    NodeDegrees,
    Owners,
    counts_of_all_nodes,
)
from khop.draw import DrawKey, DrawnNegatives, Frontier, FrontierByType, Neighbors, NeighborsByType, Positives
from khop.graph.needs import Need
from khop.graph.negatives import NegativeTables, all_drawn
from khop.graph.partitions.local_partitions import LocalPartitions, Pairs, PartsLinks, check_frontier_nodes
from khop.graph.rule import Hop
from khop.graph.rule_arrays import check_edge_type, check_hop
from khop.graph.store import NumberedGraph, NumberedNodes
from khop.kernels.csc import index_dtype
from khop.kernels.draw_negatives import NothingLeft
from khop.kernels.owners import ByOwner, first_outside
from khop.sampling.links.link_split import EdgeRange
from khop.schema import EdgeType, NodeType, Schema

_MOST_BYTES = 1 << 32  # limit of a request, larger than for any batch
EDGES_AT_ONCE = 1 << 22  # edges whose sources are read per message


@dataclass(frozen=True)
class OwnedEdges:
    """Edge counts and edges of other owners, exchanged once, at the first draw that needs them.

    Collective if owners are ranks: that draw must be outside of lanes.
    """

    held: LocalPartitions
    owners: Owners

    def counted(self, edge_type: EdgeType, own: Tensor) -> Tensor:
        """Return the count of each destination, int64 (nodes); `own` are those of local nodes."""
        offsets = self.held.folder.book.offsets[edge_type[2]]
        return counts_of_all_nodes(self.owners, offsets, own, NodeDegrees(edge_type))

    def connected(self, edge_type: EdgeType, own: Pairs) -> Pairs:
        """Return the edges with local sources. `own` are the edges with local destinations."""
        book, pairs = self.held.folder.book, torch.stack(own, dim=1)
        (first, end), count = self._span(edge_type, self.owners.own), self.held.nodes.counts[edge_type[2]]

        def check(owner: int, found: Tensor) -> None:
            check_below(found[:, 0] - first, end - first, "source")
            check_below(found[:, 1], count, "destination")

        edges = [self.owners.span(book.first_edges(edge_type), q) for q in range(self.owners.count)]
        received = [pairs[:0]]
        for begin in range(0, max(last - start for start, last in edges), EDGES_AT_ONCE):
            some = pairs[begin : begin + EDGES_AT_ONCE] if self.owners.is_first else pairs[:0]
            chosen = partial(self._to, edge_type, some)
            received += self.owners.each(EdgeSources(edge_type, begin), chosen, check)
        sources, destinations = torch.cat(received).unbind(1)
        return sources.contiguous(), destinations.contiguous()

    def page(self, edge_type: EdgeType, begin: int, owner: int) -> Tensor:
        """Return a chunk of the local edges whose source is at an owner, from a position on, (n, 2)."""
        ends = (edge_type[0], edge_type[2])
        dtype, found = index_dtype(max(self.held.nodes.counts[end] for end in ends)), []
        for csc, first in self.held.rows(edge_type):
            start, end = max(begin, 0), min(begin + EDGES_AT_ONCE, csc.num_edges)
            found.append(EdgeRange(csc, first).ends(torch.arange(start, max(start, end))).T.to(dtype))
            begin -= csc.num_edges
        return self._to(edge_type, torch.cat(found), owner)

    def _to(self, edge_type: EdgeType, pairs: Tensor, owner: int) -> Tensor:
        first, end = self._span(edge_type, owner)
        return pairs[(pairs[:, 0] >= first) & (pairs[:, 0] < end)]

    def _span(self, edge_type: EdgeType, owner: int) -> IdRange:
        return self.owners.span(self.held.folder.book.offsets[edge_type[0]], owner)


@dataclass(frozen=True, eq=False)
class NegativeQuestion:
    """A draw of exact negatives by the owners of the sources (a Question). A query is a subset of links."""

    edge_type: EdgeType
    negatives: DrawnNegatives
    key: DrawKey
    wire: NegativeWire
    tables: NegativeTables
    spans: Sequence[IdRange]  # sources of each owner
    own: int
    most_bytes: ClassVar[int] = _MOST_BYTES
    asking: ClassVar[Message] = Message("asking for negatives", "id")
    answering: ClassVar[Message] = Message("getting negatives", "id")

    def is_empty(self, query: Positives) -> bool:
        """Return True for an empty list of links."""
        return not query.sources.numel()

    def request(self, owner: int, query: Positives) -> Tensor:
        """Encode links for the owner of their sources."""
        return self.wire.request(query, self.spans[owner])

    def asked(self, message: Tensor) -> Positives:
        """Decode links; ValueError names the part that is invalid."""
        return self.wire.positives(message, self.spans[self.own])

    def worked(self, queries: Sequence[Positives]) -> list[tuple[Tensor | NothingLeft, int]]:
        """Draw negatives for the links of each query."""
        return [(self._drawn(query), query.sources.numel()) for query in queries]

    def size_of(self, work: tuple[Tensor | NothingLeft, int]) -> int:
        """Return the bytes of an answer."""
        return self.wire.size(work[1])

    def size(self, query: Positives) -> int:
        """Return the bytes of an answer."""
        return self.wire.size(query.sources.numel())

    def write(self, work: tuple[Tensor | NothingLeft, int], message: Tensor) -> None:
        """Write drawn negatives."""
        message.copy_(self.wire.answer(*work))

    def read(self, message: Tensor, query: Positives) -> Tensor | NothingLeft:
        """Decode negatives; ValueError names the part that is invalid."""
        return self.wire.drawn(message, query.sources.numel())

    def here(self, query: Positives, work: tuple[Tensor | NothingLeft, int] | None) -> Tensor | NothingLeft:
        """Return the local draws, empty for an empty query."""
        return torch.empty(0, self.wire.per_positive, dtype=torch.int64) if work is None else work[0]

    def _drawn(self, query: Positives) -> Tensor | NothingLeft:
        return self.tables.drawn(self.edge_type, self.negatives, query, self.key)


@dataclass(frozen=True, eq=False)
class PartitionedNegatives:
    """Draws of negatives from partitioned edges.

    Exact negatives are drawn by the owners of the sources. All others are drawn in this process.
    """

    held: LocalPartitions
    owners: Owners
    candidates: Mapping[NodeType, Tensor] = field(default_factory=dict)  # bool (nodes); default: all
    edges: OwnedEdges = field(init=False, repr=False)
    tables: NegativeTables = field(init=False, repr=False)

    def __post_init__(self) -> None:
        held, folder, edges = self.held, self.held.folder, OwnedEdges(self.held, self.owners)
        object.__setattr__(self, "edges", edges)
        counts = {node_type: folder.num_nodes(node_type) for node_type in held.schema.node_types}
        links = PartsLinks(held, edges.counted, edges.connected)
        tables = NegativeTables(counts, held.nodes.originals, folder.columns(), links, self.candidates)
        object.__setattr__(self, "tables", tables)

    def question(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> NegativeQuestion:
        """Return the question of a draw, with only the columns of the links."""
        folder, owners = self.held.folder, self.owners
        offsets = folder.book.offsets[edge_type[0]]
        spans = [owners.span(offsets, owner) for owner in range(owners.count)]
        wire = NegativeWire.of(edge_type, negatives, positives, key, folder.num_nodes(edge_type[2]))
        return NegativeQuestion(edge_type, negatives, key, wire, self.tables, spans, owners.own)

    def draw(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """Draw destinations, int64 (links, per_positive); see GraphStore.

        ValueError if a source does not exist.
        """
        if not negatives.exact:
            return self.tables.draw(edge_type, negatives, positives, key)
        source, folder = edge_type[0], self.held.folder
        position = first_outside(positives.sources, (0, folder.num_nodes(source)))
        if position >= 0:
            raise ValueError(
                f"negatives of {edge_type}: source {int(positives.sources[position])}: there are "
                f"{folder.num_nodes(source)} {source!r} nodes"
            )
        self.tables.prepare(edge_type, negatives, positives)
        by_owner = ByOwner.of(positives.sources, self.owners.bounds(folder.book.offsets[source]))
        shares = by_owner.positives(positives)

        def use(drawn: Sequence[Tensor | NothingLeft]) -> Tensor:
            of_owners = zip(drawn, shares, strict=True)
            return by_owner.joined([all_drawn(of, edge_type, negatives, share) for of, share in of_owners])

        return self.owners.ask(self.question(edge_type, negatives, positives, key), shares, use)


@dataclass(frozen=True, eq=False)
class HopQuestion:
    """A hop that owners draw from their edges (a Question). A query is the frontier of one owner."""

    hop: Hop
    key: DrawKey
    wire: HopWire
    held: LocalPartitions
    spans: Sequence[IdRanges]  # ids of each owner
    own: int
    most_bytes: ClassVar[int] = _MOST_BYTES
    asking: ClassVar[Message] = Message("asking for edges", "id")
    answering: ClassVar[Message] = Message("getting edges", "id")

    def is_empty(self, query: FrontierByType) -> bool:
        """Return True for an empty frontier."""
        return not any(of_type.nodes.numel() for of_type in query.values())

    def request(self, owner: int, query: FrontierByType) -> Tensor:
        """Encode a frontier for its owner."""
        return self.wire.request(query, self.spans[owner])

    def asked(self, message: Tensor) -> dict[NodeType, Frontier]:
        """Decode a frontier; ValueError names the part that is invalid."""
        return self.wire.frontier(message, self.spans[self.own])

    def worked(self, queries: Sequence[FrontierByType]) -> Sequence[NeighborsByType]:
        """Draw for all queries in one call; return the neighbors of each."""
        if len(queries) == 1:
            return [self.held.sample_hop(queries[0], self.hop, self.key)]
        types = self.wire.node_types
        together = {t: _joined([query[t] for query in queries]) for t in types}
        drawn = self.held.sample_hop(together, self.hop, self.key)
        counts = {t: [query[t].nodes.numel() for query in queries] for t in types}
        pieces = {t: _cut(found, counts[t[2]]) for t, found in drawn.items()}
        return [{t: of_all[number] for t, of_all in pieces.items()} for number in range(len(queries))]

    def size_of(self, work: NeighborsByType) -> int:
        """Return the bytes of an answer."""
        return self.wire.size_of(work)

    def size(self, query: FrontierByType) -> int | None:
        """Return the bytes of an answer; None if rows may have more than `MOST_PADDED` edges."""
        return self.wire.size(_rows_of(query)) if self.wire.is_bounded else None

    def write(self, work: NeighborsByType, message: Tensor) -> None:
        """Write drawn neighbors."""
        self.wire.write(work, message)

    def read(self, message: Tensor, query: FrontierByType) -> NeighborsByType:
        """Decode neighbors; ValueError names the part that is invalid."""
        return self.wire.neighbors(message, _rows_of(query))

    def here(self, query: FrontierByType, work: NeighborsByType | None) -> NeighborsByType:
        """Return the local draws, empty for an empty frontier."""
        return self.wire.neighbors(NO_BYTES, dict.fromkeys(query, 0)) if work is None else work


@dataclass(frozen=True, eq=False)
class PartitionedGraph(NumberedGraph):
    """A graph store over edges partitioned across owners: ranks, or servers.

    A hop asks the owners of the frontier one question for all edge types together. It is collective if owners
    are ranks: each rank may have any frontier, and all make the same hops with the same keys. Draws are the
    same as in the unpartitioned graph.
    """

    held: LocalPartitions  # the partitions of this process
    owners: Owners
    candidates: Mapping[NodeType, Tensor] = field(default_factory=dict)  # bool (nodes), possible negatives
    schema: Schema = field(init=False, repr=False)
    nodes: NumberedNodes = field(init=False, repr=False)
    num_all_edges: Mapping[EdgeType, int] = field(init=False, repr=False)  # of all partitions, thinned or not
    negatives: PartitionedNegatives = field(init=False, repr=False)
    _bounds: Mapping[NodeType, Sequence[int]] = field(init=False, repr=False)  # ids from bound q: owner q
    _spans: Sequence[IdRanges] = field(init=False, repr=False)  # the ids of each owner

    def __post_init__(self) -> None:
        held, owners = self.held, self.owners
        offsets = held.nodes.bounds
        found = {
            "schema": held.schema,
            "nodes": held.nodes,
            "num_all_edges": {t: held.folder.num_edges(t) for t in held.schema.edge_types},
            "negatives": PartitionedNegatives(held, owners, self.candidates),
            "_bounds": {t: owners.bounds(of_type) for t, of_type in offsets.items()},
            "_spans": [
                {t: owners.span(of_type, q) for t, of_type in offsets.items()} for q in range(owners.count)
            ],
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)

    @property
    def is_collective(self) -> bool:
        """True if a hop is collective."""
        return self.owners.is_collective

    def num_edges(self, edge_type: EdgeType) -> int:
        """Return the number of edges of a type in all partitions; Unsupported if some are excluded."""
        self.held.check_unthinned(edge_type)
        return self.num_all_edges[edge_type]

    def in_degrees(self, edge_type: EdgeType, nodes: Tensor) -> Tensor:
        """Return the in-degrees of nodes, int64 (nodes), from their owners; not supported over ranks."""
        if self.owners.is_collective:
            return super().in_degrees(edge_type, nodes)
        question = self.degree_question(edge_type)
        by_owner = ByOwner.of(nodes, self._bounds[edge_type[2]])
        return self.owners.ask(question, by_owner.split(nodes), by_owner.joined)

    def prepare(self, needs: Collection[Need]) -> None:
        """Build the arrays that draws need. Collective if the graph is; see GraphStore."""
        self.held.prepare(needs)
        super().prepare(needs)

    def question(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> HopQuestion:
        """Return the question of a hop, with only the field names of the frontier."""
        wire = HopWire.of(frontier, hop, key, self.nodes.counts, self.num_all_edges)
        return HopQuestion(hop, key, wire, self.held, self._spans, self.owners.own)

    def degree_question(self, edge_type: EdgeType) -> DegreeQuestion:
        """Return the question for the in-degrees of nodes."""
        check_edge_type(edge_type, self.schema)
        spans = [of_owner[edge_type[2]] for of_owner in self._spans]
        return DegreeQuestion(edge_type, self.held, spans, self.owners.own)

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw in-edges of every frontier node; see GraphStore."""
        check_hop(frontier, hop, self.schema)
        check_frontier_nodes(frontier, hop, self.nodes)
        question = self.question(frontier, hop, key)
        by_type = {t: ByOwner.of(frontier[t].nodes, self._bounds[t]) for t in question.wire.node_types}
        shares = {t: of_type.frontiers(frontier[t]) for t, of_type in by_type.items()}
        queries = [{t: shares[t][owner] for t in shares} for owner in range(self.owners.count)]

        def use(drawn: Sequence[NeighborsByType]) -> NeighborsByType:
            types = question.wire.most
            return {t: by_type[t[2]].neighbors([of_owner[t] for of_owner in drawn]) for t in types}

        return self.owners.ask(question, queries, use)

    def sample_negatives(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """Draw destinations for the sources of links; see GraphStore.

        Exact negatives are drawn by the owners of the sources. All others are drawn in this process. The
        first draw of a kind exchanges the data that it needs; see `OwnedEdges`.
        """
        check_edge_type(edge_type, self.schema)
        return self.negatives.draw(edge_type, negatives, positives, key)

    def only(self, edge_types: Collection[EdgeType]) -> PartitionedGraph:
        """Return the same graph with only these edge types, and the node types at their ends."""
        held = self.held.only(edge_types)
        return replace(self, held=held, owners=self.owners.after(held.schema.edge_types))

    def keeping(
        self,
        kept: Mapping[EdgeType, Sequence[Tensor]],
        candidates: Mapping[NodeType, Tensor] | None = None,
        step: object = None,
    ) -> PartitionedGraph:
        """Return the graph with only the given edges of some types; see `LocalPartitions`.

        Each owner passes the edges to keep in its partitions. Negatives are then drawn from the marked nodes
        of the types in `candidates`, bool (nodes). `step` names the change to owners that are servers.
        """
        drawn = {**self.candidates, **(candidates or {})}
        return replace(self, held=self.held.keeping(kept), candidates=drawn, owners=self.owners.after(step))


@dataclass(frozen=True, eq=False)
class DegreeQuestion:
    """A question for in-degrees of nodes (a Question). A query is nodes of one owner, int64 (n)."""

    edge_type: EdgeType
    held: LocalPartitions
    spans: Sequence[IdRange]
    own: int
    most_bytes: ClassVar[int] = _MOST_BYTES
    asking: ClassVar[Message] = Message("asking for numbers of edges", "id")
    answering: ClassVar[Message] = Message("getting numbers of edges", "id")

    def is_empty(self, query: Tensor) -> bool:
        """Return True for an empty list of nodes."""
        return not query.numel()

    def request(self, owner: int, query: Tensor) -> Tensor:
        """Encode nodes."""
        return query.contiguous().view(torch.uint8)

    def asked(self, message: Tensor) -> Tensor:
        """Decode nodes; ValueError names a node that this process does not store."""
        if message.numel() % 8:
            raise ValueError(f"{message.numel()} bytes are not a list of nodes")
        nodes, (first, end) = message.view(torch.int64), self.spans[self.own]
        check_below(nodes - first, end - first, "node")
        return nodes

    def worked(self, queries: Sequence[Tensor]) -> list[Tensor]:
        """Count the in-edges of the nodes of each query."""
        return [self.held.in_degrees(self.edge_type, query) for query in queries]

    def size_of(self, work: Tensor) -> int:
        """Return the bytes of an answer."""
        return 8 * work.numel()

    def size(self, query: Tensor) -> int:
        """Return the bytes of an answer."""
        return 8 * query.numel()

    def write(self, work: Tensor, message: Tensor) -> None:
        """Write counts."""
        message.view(torch.int64).copy_(work)

    def read(self, message: Tensor, query: Tensor) -> Tensor:
        """Decode counts; ValueError if they are not valid edge counts."""
        if message.numel() != 8 * query.numel():
            raise ValueError(f"{message.numel()} bytes of counts, for {query.numel()} nodes")
        counts = message.view(torch.int64)
        check_below(counts, MOST_EDGES, "number of edges")
        return counts

    def here(self, query: Tensor, work: Tensor | None) -> Tensor:
        """Return the local counts, empty for an empty query."""
        return query[:0] if work is None else work


def _rows_of(frontier: FrontierByType) -> dict[NodeType, int]:
    return {t: of_type.nodes.numel() for t, of_type in frontier.items()}


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
        values = (None if v is None else v[begin:end] for v in (drawn.edges, drawn.weights, drawn.times))
        found.append(Neighbors(offsets - begin, drawn.nodes[begin:end], *values))
        row += count
    return found
