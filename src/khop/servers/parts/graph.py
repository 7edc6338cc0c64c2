"""A graph in parts on several servers, sampled as if all of its edges were local.

Negatives drawn from edges in parts on several servers.

Links of a split of a graph in parts: each is on the server of its destination.

A split of links over a graph in parts: each server splits the edges of its part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import MappingProxyType

import torch
from torch import Tensor

from khop.distributed.exchange.codec import check_below
from khop.distributed.exchange.draw_wire import IdRanges, NegativeWire
from khop.distributed.link_split import ENDS, HeldEdges, PartitionedLinks
from khop.distributed.partitioned_graph import HopShares
from khop.draw import DrawKey, DrawnNegatives, FrontierByType, NeighborsByType, Positives
from khop.graph.features.store import FeatureStoreBase, Gathered, Rows, Wanted
from khop.graph.folder import TimeCutOffs
from khop.graph.needs import Need
from khop.graph.negatives import NegativeTables, all_drawn
from khop.graph.partitions.local_partitions import LocalPartitions, Pairs, PartsLinks, refuse_relations
from khop.graph.rule import Hop
from khop.graph.rule_arrays import check_edge_type
from khop.graph.store import NumberedGraph
from khop.kernels.draw_negatives import NothingLeft
from khop.kernels.owners import ByOwner, first_outside
from khop.sampling.links.link_seeds import links_digest
from khop.sampling.links.link_split import (
    PARTS,
    Counted,
    EdgeRange,
    EdgeSplit,
    Part,
    Shares,
    check_parts,
    link_numbers,
    split_by_column,
    split_by_time,
    split_edges,
)
from khop.schema import ColumnSpec, EdgeType, NodeType, Specs, Type
from khop.servers.messages import (
    ByColumn,
    CountsAnswer,
    DegreesOf,
    EdgesAnswer,
    EdgesOf,
    LinkCountsOf,
    LinkRowsAnswer,
    LinkRowsOf,
    NodeSpan,
    OctetsAnswer,
    Only,
    SplitArguments,
    SplitCountsOf,
    Step,
    View,
    some_nodes,
)
from khop.servers.parts.exchange import PartExchange, hop_of, negatives_of
from khop.servers.views import KeptValues

EDGES_AT_ONCE = 1 << 22  # of one request


class SharedNegatives:
    """Draws of negatives from a graph in parts.

    Exact negatives are drawn by the owners of the sources. All others are drawn here. `candidates` marks the
    nodes of some types that may be drawn, bool (nodes).
    """

    def __init__(
        self,
        held: LocalPartitions,
        exchange: PartExchange,
        view: View,
        candidates: Mapping[NodeType, Tensor] = MappingProxyType({}),
    ) -> None:
        self._held, self._exchange, self._view = held, exchange, view
        folder = held.folder
        counts = {node_type: folder.num_nodes(node_type) for node_type in held.schema.node_types}
        links = PartsLinks(held, OtherEdges(held, exchange, view))
        self.tables = NegativeTables(counts, held.nodes.originals, folder.columns(), links, candidates)

    def draw(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """Draw destinations, int64 (links, per_positive); see GraphStore.

        ValueError if a source does not exist.
        """
        if not negatives.exact:
            return self.tables.draw(edge_type, negatives, positives, key)
        if positives.relations is not None:
            refuse_relations(edge_type, positives.relation_column)
        source, _, destination = edge_type
        folder, own = self._held.folder, self._exchange.part
        position = first_outside(positives.sources, (0, folder.num_nodes(source)))
        if position >= 0:
            raise ValueError(
                f"negatives of {edge_type}: source {int(positives.sources[position])}: there are "
                f"{folder.num_nodes(source)} {source!r} nodes"
            )
        bounds = folder.book.offsets[source]
        wire = NegativeWire.of(edge_type, negatives, positives, key, folder.num_nodes(destination))
        owners = ByOwner.of(positives.sources, bounds)
        shares = owners.positives(positives)
        queries = {}
        for part in self._exchange.others:
            if shares[part].sources.numel():
                links = wire.request(shares[part], (bounds[part], bounds[part + 1]))
                queries[part] = negatives_of(self._view, edge_type, negatives, positives, key, links)

        def read(part: int, answer: OctetsAnswer) -> Tensor | NothingLeft:
            return wire.drawn(answer.content, shares[part].sources.numel())

        mine, found = self._exchange.ask(
            "part negatives",
            queries,
            OctetsAnswer,
            read,
            lambda: self.tables.drawn(edge_type, negatives, shares[own], key),
        )
        nothing = torch.empty(0, negatives.per_positive, dtype=torch.int64)
        drawn = [mine if part == own else found.get(part, nothing) for part in range(len(shares))]
        by_part = zip(drawn, shares, strict=True)
        return owners.joined([all_drawn(of, edge_type, negatives, share) for of, share in by_part])


@dataclass(frozen=True)
class OtherEdges:
    """The edges of other parts, as draws of negatives need them (an Others)."""

    held: LocalPartitions
    exchange: PartExchange
    view: View

    def counted(self, edge_type: EdgeType, own: Tensor) -> Tensor:
        """Return the counts of every destination, int64 (nodes); `own` are those of the nodes held here."""
        bounds = self.held.folder.book.offsets[edge_type[2]]
        queries = {
            part: DegreesOf(self.view, edge_type, NodeSpan(bounds[part], bounds[part + 1]))
            for part in self.exchange.others
        }

        def read(part: int, answer: CountsAnswer) -> Tensor:
            return answer.checked(bounds[part + 1] - bounds[part])

        _, found = self.exchange.ask("part degrees", queries, CountsAnswer, read, lambda: None)
        found[self.exchange.part] = own
        return torch.cat([found[part] for part in sorted(found)])

    def connected(self, edge_type: EdgeType, own: Pairs) -> Pairs:
        """Return the edges with sources held here. `own` are the edges with destinations held here."""
        bounds, count = self.held.folder.book.offsets[edge_type[0]], self.held.folder.num_nodes(edge_type[2])
        first, end = bounds[self.exchange.part : self.exchange.part + 2]
        is_here = (own[0] >= first) & (own[0] < end)
        pieces = [torch.stack([ends[is_here] for ends in own])]

        def read(part: int, answer: EdgesAnswer) -> tuple[int, Tensor]:
            pairs = answer.edges
            if pairs.dim() != 2 or pairs.shape[0] != 2 or pairs.dtype not in (torch.int32, torch.int64):
                raise ValueError(f"edges: are {pairs.dtype} {tuple(pairs.shape)}")
            check_below(pairs[0] - first, end - first, "source")
            check_below(pairs[1], count, "destination")
            return answer.count, pairs

        begin, left = 0, list(self.exchange.others)
        while left:
            asked = dict.fromkeys(left, EdgesOf(self.view, edge_type, first, end, begin))
            _, found = self.exchange.ask("part edges", asked, EdgesAnswer, read, lambda: None)
            pieces += [pairs.to(pieces[0].dtype) for _, pairs in found.values()]
            begin += EDGES_AT_ONCE
            left = [part for part, (total, _) in found.items() if begin < total]
        sources, destinations = torch.cat(pieces, dim=1)
        return sources.contiguous(), destinations.contiguous()


def edges_between(
    held: LocalPartitions, edge_type: EdgeType, span: Sequence[int], begin: int
) -> tuple[int, Tensor]:
    """Return the number of edges held here, and those of `EDGES_AT_ONCE` with sources in a span, (2, n)."""
    ((csc, first),) = held.rows(edge_type)
    some = torch.arange(min(begin, csc.num_edges), min(begin + EDGES_AT_ONCE, csc.num_edges))
    ends = EdgeRange(csc, first).ends(some)
    return csc.num_edges, ends[:, (ends[0] >= span[0]) & (ends[0] < span[1])]


_NO_BYTES = torch.empty(0, dtype=torch.uint8)


class SharedGraph(NumberedGraph):
    """A graph store over the edges of one part; other servers draw from the other parts.

    A hop asks each part that has nodes of the frontier, all at once, and only then. Draws equal those of the
    graph before partitioning. Threads may share the store; each makes hops of its own.
    """

    def __init__(
        self,
        held: LocalPartitions,
        exchange: PartExchange,
        view: View = (),
        candidates: Mapping[NodeType, Tensor] = MappingProxyType({}),
    ) -> None:
        self.held, self.exchange, self.view = held, exchange, view
        self.candidates = candidates  # bool (nodes) by type: drawn as negatives; default: all
        self.schema, self.nodes = held.schema, held.nodes
        self.num_all_edges = {t: held.folder.num_edges(t) for t in held.schema.edge_types}
        self.negatives = SharedNegatives(held, exchange, view, candidates)

    @property
    def bounds(self) -> Mapping[NodeType, tuple[int, ...]]:
        """First node of each part, and the end of the last, by type."""
        return self.held.folder.book.offsets

    def spans(self, part: int) -> IdRanges:
        """Return the range of the nodes of a part, by type."""
        return {t: (of_type[part], of_type[part + 1]) for t, of_type in self.bounds.items()}

    def num_edges(self, edge_type: EdgeType) -> int:
        """Return the number of edges of a type in all parts; Unsupported if some are left out."""
        self.held.check_unthinned(edge_type)
        return self.num_all_edges[edge_type]

    def in_degrees(self, edge_type: EdgeType, nodes: Tensor) -> Tensor:
        """Return the number of in-edges of some nodes, int64 (nodes), with one request to each owner."""
        check_edge_type(edge_type, self.schema)
        owners, own = ByOwner.of(nodes, self.bounds[edge_type[2]]), self.exchange.part
        shares = owners.split(nodes)
        queries = {}
        for part in self.exchange.others:
            if shares[part].numel():
                queries[part] = DegreesOf(self.view, edge_type, some_nodes(shares[part]))

        def read(part: int, answer: CountsAnswer) -> Tensor:
            return answer.checked(shares[part].numel())

        mine, found = self.exchange.ask(
            "part degrees", queries, CountsAnswer, read, lambda: self.held.in_degrees(edge_type, shares[own])
        )
        found[own] = mine
        return owners.joined([found.get(part, mine[:0]) for part in range(len(shares))])

    def prepare(self, needs: Collection[Need]) -> None:
        """Build now the arrays that draws of this part need; see GraphStore."""
        self.held.prepare(needs)
        super().prepare(needs)

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw in-edges of every frontier node; see GraphStore."""
        shares = HopShares.of(frontier, hop, key, self.held, self.num_all_edges, self.bounds)
        wire, counts = shares.wire, [shares.counts(part) for part in range(self.held.folder.book.num_parts)]
        queries = {}
        for part in self.exchange.others:
            if any(counts[part].values()):
                message = wire.request(shares.frontier(part), self.spans(part))
                queries[part] = hop_of(self.view, hop, key, wire, message)

        def read(part: int, answer: OctetsAnswer) -> NeighborsByType:
            return wire.neighbors(answer.content, counts[part])

        own = self.exchange.part
        mine, found = self.exchange.ask(
            "hop", queries, OctetsAnswer, read, lambda: self.held.sample_hop(shares.frontier(own), hop, key)
        )
        nothing = wire.neighbors(_NO_BYTES, dict.fromkeys(shares.frontiers, 0))
        return shares.joined(
            [mine if part == own else found.get(part, nothing) for part in range(len(counts))]
        )

    def sample_negatives(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """Draw destinations for the sources of links; see GraphStore."""
        check_edge_type(edge_type, self.schema)
        return self.negatives.draw(edge_type, negatives, positives, key)

    def only(self, edge_types: Collection[EdgeType]) -> SharedGraph:
        """Return the same graph with only these edge types, and the node types at their ends."""
        kept = tuple(t for t in self.schema.edge_types if t in edge_types)
        return self.after(Only(kept), self.held.only(edge_types))

    def after(
        self, step: Step, held: LocalPartitions, candidates: Mapping[NodeType, Tensor] = MappingProxyType({})
    ) -> SharedGraph:
        """Return the graph after one more step of its view.

        `held` are the edges of this part after the step. Negatives are drawn from the `candidates` of these
        types from then on.
        """
        drawn = {**self.candidates, **candidates}
        return SharedGraph(held, self.exchange, (*self.view, step), drawn)


_NUMBERS = 2  # random numbers of links that are kept: 8 bytes for each link of a type


def shared_edges(graph: SharedGraph, arguments: SplitArguments) -> HeldEdges:
    """Return the edges of this server's part, with sums over all parts from their servers."""

    def total(counts: Tensor, of: Counted) -> Tensor:
        asked = SplitCountsOf(graph.view, arguments, of.edge_type, of.shift, of.prefix, of.above)

        def read(part: int, answer: CountsAnswer) -> Tensor:
            if answer.counts.shape != counts.shape:
                raise ValueError(f"counts: are {tuple(answer.counts.shape)}, not {tuple(counts.shape)}")
            return answer.counts

        exchange = graph.exchange
        queries = dict.fromkeys(exchange.others, asked)
        _, found = exchange.ask("split counts", queries, CountsAnswer, read, lambda: None)
        return counts + sum(found.values())

    return HeldEdges(graph.held, total)


class SharedSplit:
    """A split of links of a graph in parts. Threads may share it.

    A split by time or by a column needs the edges of this part alone, and so do counts of links by their
    random numbers. The rest of a random split needs the bounds of its parts, for which the other servers are
    asked once.
    """

    def __init__(self, graph: SharedGraph, arguments: SplitArguments) -> None:
        self.graph, self.arguments = graph, arguments
        self._edges = shared_edges(graph, arguments)
        self._numbers: KeptValues[Tensor] = KeptValues(_NUMBERS)
        self._made: KeptValues[EdgeSplit] = KeptValues(1)
        self._totals: KeptValues[dict[str, int]] = KeptValues(len(arguments.edge_types))  # links by part

    def counts(self, counted: Counted) -> Tensor:
        """Return the counts of the links of this part."""
        edge_type, key = counted.edge_type, self.arguments.key
        numbers = self._numbers.of(edge_type, lambda: link_numbers(self._edges, edge_type, key))
        return counted.counts(numbers)

    def part(self, name: str) -> Part:
        """Return a part of the split, for the edges held here; ValueError if there is none of this name."""
        if name not in PARTS:
            raise ValueError(f"part {name!r} of a split of links: must be one of {list(PARTS)}")
        made = self._made.of("split", lambda: _split(self._edges, self.arguments))
        return {"train": made.train, "val": made.val, "test": made.test}[name]

    def check(self) -> None:
        """Raise ValueError if a part of a split by time or by a column has no links.

        Negatives by relation are refused, too.
        """
        columns = self.arguments.columns
        if columns.relation is not None and columns.negatives:
            refuse_relations(self.arguments.edge_types[0], columns.relation)
        if isinstance(self.arguments.method, Shares):
            return
        for edge_type in self.arguments.edge_types:
            check_parts(edge_type, self._totals.of(edge_type, partial(self._total_counts, edge_type)))

    def _total_counts(self, edge_type: EdgeType) -> dict[str, int]:
        return {name: int(self.ask_link_counts(name, edge_type).sum()) for name in PARTS}

    def link_counts(self, name: str, edge_type: EdgeType) -> Tensor:
        """Return the number of links to each destination held here, int64 (nodes of this part)."""
        first, *_, end = self.graph.held.folder.bounds(edge_type[2])
        destinations = self._ends(edge_type, self._positions(name, edge_type))[:, 1]
        return torch.bincount(destinations - first, minlength=end - first)

    def link_rows(self, name: str, edge_type: EdgeType, rows: Tensor) -> dict[str, Tensor]:
        """Return the ends, labels and times of links held here, by their number among them."""
        at = self._positions(name, edge_type)
        if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < at.numel():
            raise ValueError(f"links {int(rows.min())} to {int(rows.max())}: there are {at.numel()} here")
        at, facts, held = at[rows], self.arguments.columns, self.graph.held
        found = {"ends": self._ends(edge_type, at)}
        if facts.label is not None:
            found["labels"] = held.column(edge_type, facts.label, [at])[0]
        if facts.time is not None:
            found["times"] = held.column(edge_type, facts.time, [at])[0].long()
        if facts.relation is not None:
            found["relations"] = held.column(edge_type, facts.relation, [at])[0].long()
        return found

    def ask_link_counts(self, name: str, edge_type: EdgeType) -> Tensor:
        """Return the number of links to each destination of all parts, int64 (nodes)."""
        bounds = self.graph.bounds[edge_type[2]]

        def read(part: int, answer: CountsAnswer) -> Tensor:
            return answer.checked(bounds[part + 1] - bounds[part])

        exchange = self.graph.exchange
        asked = LinkCountsOf(self.graph.view, self.arguments, name, edge_type)
        own, found = exchange.ask(
            "split links",
            dict.fromkeys(exchange.others, asked),
            CountsAnswer,
            read,
            lambda: self.link_counts(name, edge_type),
        )
        found[exchange.part] = own
        return torch.cat([found[part] for part in sorted(found)])

    def _positions(self, name: str, edge_type: EdgeType) -> Tensor:
        links = self.part(name).links
        if edge_type not in links:
            raise ValueError(f"links of {edge_type}: the split has those of {list(links)}")
        (at,) = links[edge_type]
        return at

    def _ends(self, edge_type: EdgeType, positions: Tensor) -> Tensor:
        """Return int64 (n, 2), sources first."""
        (edges,) = self._edges.edge_ranges(edge_type)
        return edges.ends(positions).T


def _split(edges: HeldEdges, arguments: SplitArguments) -> EdgeSplit:
    match arguments.method:
        case Shares():
            return split_edges(edges, arguments.edge_types, arguments.method, arguments.key)
        case TimeCutOffs():
            return split_by_time(edges, arguments.edge_types, arguments.method)
        case ByColumn():
            return split_by_column(edges, arguments.edge_types)


def counted(asked: SplitCountsOf) -> Counted:
    """Return the links that a request counts."""
    if asked.shift % 16:
        raise ValueError(f"shift: is {asked.shift}, and must be a multiple of 16")
    return Counted(asked.edge_type, asked.shift, asked.prefix, asked.above)


_AT_ONCE = 1 << 16  # links whose digest is computed at a time


@dataclass(frozen=True, eq=False)
class LinkPlaces:
    """Numbers of the links of one edge type: by the original ids of their destinations, then by row."""

    nodes: Tensor  # int64 (nodes): destinations by original id
    ends: Tensor  # int64 (nodes): number after the last link of each of these
    before: Tensor  # int64 (nodes): links of nodes with a smaller id, by id

    @classmethod
    def of(cls, counts: Tensor, originals: Tensor | None) -> LinkPlaces:
        """Return the places of links; `counts` are the numbers of links of each destination."""
        nodes = torch.arange(counts.numel()) if originals is None else originals.argsort()
        return cls(nodes, counts[nodes].cumsum(0), counts.cumsum(0) - counts)

    @property
    def count(self) -> int:
        """Number of links."""
        return int(self.ends[-1]) if self.ends.numel() else 0

    def found(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the destinations of links, and the numbers that the links would have by ids alone."""
        rank = torch.searchsorted(self.ends, numbers, right=True)
        nodes = self.nodes[rank]
        starts = self.ends[rank - 1].masked_fill(rank == 0, 0)
        return nodes, self.before[nodes] + numbers - starts


class SharedLinkTable(FeatureStoreBase):
    """The links of a part of a split as columns by link number: ends, labels, times and negatives.

    Negatives are drawn when they are asked for, from the graph `drawn`: a draw depends on the number of its
    link alone.
    """

    def __init__(self, split: SharedSplit, name: str, drawn: SharedGraph) -> None:
        self._split, self._name, self._drawn = split, name, drawn
        facts = split.arguments.columns
        self._facts = facts if PARTS.index(name) else facts.of_training
        originals = split.graph.nodes.originals
        self._places = {
            t: LinkPlaces.of(split.ask_link_counts(name, t), originals.get(t[2]))
            for t in split.arguments.edge_types
        }

    @property
    def specs(self) -> Specs:
        """Dtype and shape of every column, by edge type."""
        return {t: self._specs(t) for t in self._places}

    @property
    def counts(self) -> Mapping[EdgeType, int]:
        """Number of links by edge type."""
        return {t: places.count for t, places in self._places.items()}

    def local_rows(self, type_: Type) -> range:
        """Return no rows: those of this part have numbers among the others."""
        return range(0)

    def gather(self, wanted: Wanted) -> Gathered:
        """Return the columns of links by their numbers, from the servers that have them."""
        found: Gathered = {}
        for type_, rows in wanted.items():
            assert isinstance(type_, tuple)
            columns = self._columns(type_, rows.ids)
            found[type_] = {name: columns[name][: rows.limits.get(name)] for name in rows.columns}
        return found

    def _columns(self, edge_type: EdgeType, numbers: Tensor) -> dict[str, Tensor]:
        graph, places = self._split.graph, self._places[edge_type]
        bounds = graph.bounds[edge_type[2]]
        nodes, rows = places.found(numbers)
        owners = ByOwner.of(nodes, bounds)
        firsts = [int(places.before[first]) if first < end else 0 for first, end in pairwise(bounds)]
        shares = [of_part - first for of_part, first in zip(owners.split(rows), firsts, strict=True)]
        queries = {}
        for part in graph.exchange.others:
            if shares[part].numel():
                queries[part] = LinkRowsOf(
                    graph.view, self._split.arguments, self._name, edge_type, shares[part]
                )
        specs = {name: spec for name, spec in self._specs(edge_type).items() if name != "negatives"}

        def read(part: int, answer: LinkRowsAnswer) -> dict[str, Tensor]:
            return answer.checked(specs, shares[part].numel())

        own = graph.exchange.part
        mine, found = graph.exchange.ask(
            "split rows",
            queries,
            LinkRowsAnswer,
            read,
            lambda: self._split.link_rows(self._name, edge_type, shares[own]),
        )
        nothing = {name: fact[:0] for name, fact in mine.items()}
        of_parts = [mine if part == own else found.get(part, nothing) for part in range(len(shares))]
        columns = {name: owners.joined([of_part[name] for of_part in of_parts]) for name in specs}
        if self._facts.negatives:
            columns["negatives"] = self._negatives(edge_type, numbers, columns)
        return columns

    def _negatives(self, edge_type: EdgeType, numbers: Tensor, columns: Mapping[str, Tensor]) -> Tensor:
        facts, key = self._facts, self._split.arguments.key.plus(PARTS.index(self._name))
        sources = columns[ENDS][:, 0].contiguous()
        of_relations = (columns.get("relations"), facts.relation)
        positives = Positives(sources, numbers, columns.get("times"), facts.time, *of_relations)
        return self._drawn.sample_negatives(edge_type, facts.eval_negatives, positives, key)

    def _specs(self, edge_type: EdgeType) -> dict[str, ColumnSpec]:
        facts, found = self._facts, {ENDS: ColumnSpec("int64", (2,))}
        if facts.label is not None:
            spec = self._split.graph.schema.column(edge_type, facts.label)
            found["labels"] = ColumnSpec(spec.dtype, spec.shape)
        if facts.time is not None:
            found["times"] = ColumnSpec("int64", ())
        if facts.relation is not None:
            found["relations"] = ColumnSpec("int64", ())
        if facts.negatives:
            found["negatives"] = ColumnSpec("int64", (facts.negatives,))
        return found


class _Digests(Mapping[EdgeType, int]):
    """The digests of links by edge type, each computed when it is asked for: that reads all links."""

    def __init__(self, table: SharedLinkTable) -> None:
        self._table = table

    def __getitem__(self, edge_type: EdgeType) -> int:
        count, total = self._table.counts[edge_type], 0
        columns = tuple(self._table.specs[edge_type])
        for first in range(0, count, _AT_ONCE):
            numbers = torch.arange(first, min(count, first + _AT_ONCE))
            found = self._table.gather({edge_type: Rows(numbers, columns)})[edge_type]
            total += links_digest(first, [found[name] for name in columns])
        return total & (1 << 64) - 1

    def __iter__(self) -> Iterator[EdgeType]:
        return iter(self._table.counts)

    def __len__(self) -> int:
        return len(self._table.counts)


def shared_links(split: SharedSplit, name: str, drawn: SharedGraph) -> PartitionedLinks:
    """Return the links of a part of a split, which stay on the servers of their destinations.

    Their negatives are drawn from the graph `drawn`.
    """
    table = SharedLinkTable(split, name, drawn)
    return PartitionedLinks(table.counts, table, _Digests(table))
