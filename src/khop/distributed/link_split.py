"""Link splits over partitioned edges; each rank keeps the links to its nodes.

Each rank splits its local edges. Only counts are exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar

import torch
from torch import Tensor

from khop.distributed.exchange.row_wire import stored_dtype
from khop.distributed.owners import Owners, Subject, counts_of_all_nodes, summed
from khop.distributed.partitioned_features import PartitionedFeatures, RowQuestion
from khop.distributed.partitioned_graph import PartitionedGraph
from khop.draw import DrawKey, Positives
from khop.graph.features.store import FeatureStoreBase, Gathered, Rows, Wanted
from khop.graph.partitions.local_partitions import LocalPartitions
from khop.sampling.links.link_seeds import LinkList, Links, link_list_metadata, links_digest
from khop.sampling.links.link_split import (
    Chosen,
    CountedLinks,
    EdgeRange,
    LinkColumns,
    Shares,
    nodes_before,
    nodes_with_edges_before,
    split_edges,
)
from khop.sampling.seeds import SeedLinks, Seeds, StepShare, digest_of, numbers_by_type
from khop.schema import ColumnSpec, EdgeType, NodeType, Schema, Specs, Type

ENDS = "ends"  # column of link ends; `facts` are the other columns
NEGATIVES = "negatives"
_AT_ONCE = 1 << 16  # links per draw of negatives, or per digest


@dataclass(frozen=True)
class SplitCounts(Subject):
    """Link counts by random number; `split` names the split to owners that are servers."""

    of: CountedLinks
    split: object = None
    stage: ClassVar[str] = "splitting links"


@dataclass(frozen=True)
class LinkCounts(Subject):
    """Numbers of links to nodes; `part` names the links' split part to owners that are servers."""

    edge_type: EdgeType
    part: object = None
    stage: ClassVar[str] = "numbering links"


@dataclass(frozen=True)
class Touched(Subject):
    """Marks of nodes that have edges before a time."""

    limit: int
    stage: ClassVar[str] = "marking nodes with edges"


@dataclass(frozen=True)
class LinkSums(Subject):
    """Sums over the links of a list."""

    stage: ClassVar[str] = "comparing links"


@dataclass(frozen=True, eq=False)
class HeldEdges:
    """The edges of this process (an EdgesToSplit), and sums of counts over all owners.

    Without `owners`, this process has all edges.
    """

    held: LocalPartitions
    owners: Owners | None = None
    split: object = None  # names the split to owners that are servers

    @property
    def schema(self) -> Schema:
        """The types of the graph."""
        return self.held.schema

    @property
    def original_ids(self) -> Mapping[NodeType, Tensor]:
        """Original ids, int64 (nodes of all parts), by node type."""
        return self.held.nodes.originals

    @property
    def is_whole(self) -> bool:
        """True if this process has all edges."""
        return self.owners is None or self.owners.count == 1

    def edge_ranges(self, edge_type: EdgeType) -> Sequence[EdgeRange]:
        """Return the edges of each part."""
        return [EdgeRange(csc, first) for csc, first in self.held.rows(edge_type)]

    def total(self, counts: Tensor, of: CountedLinks) -> Tensor:
        """Return the sum of counts over all parts."""
        return counts if self.owners is None else summed(self.owners, counts, SplitCounts(of, self.split))

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type in all parts."""
        return self.held.nodes.counts[node_type]

    def edge_column(self, edge_type: EdgeType, name: str) -> Sequence[Tensor] | None:
        """Return a column of the edges of each part; None if the type lacks it."""
        if name not in self.schema.columns.get(edge_type, {}):
            return None
        every = [torch.arange(csc.num_edges) for csc, _ in self.held.rows(edge_type)]
        return self.held.column(edge_type, name, every)

    def node_column(self, node_type: NodeType, name: str) -> Tensor | None:
        """Return a scalar column of the nodes of all parts; None if the type lacks it."""
        if name not in self.schema.columns.get(node_type, {}):
            return None
        return self.held.folder.columns()[node_type][name]


def held_edges(graph: PartitionedGraph) -> HeldEdges:
    """Return the edges of the partitions of this process."""
    return HeldEdges(graph.held, graph.owners)


def nodes_existing(graph: PartitionedGraph, limit: int) -> dict[NodeType, Tensor]:
    """Mark the nodes that exist before a time, bool (nodes), for the types with times.

    See `Owners.each`: collective if owners are ranks.
    """
    edges = held_edges(graph)
    touched = nodes_with_edges_before(edges, limit)
    if touched:
        own = torch.cat(list(touched.values()))

        def check(owner: int, marks: Tensor) -> None:
            if marks.shape != own.shape:
                raise ValueError(f"{marks.numel()} marks of nodes, where {own.numel()} are expected")

        marks = torch.stack(graph.owners.each(Touched(limit), lambda _: own, check)).any(0)
        counts = [of_type.numel() for of_type in touched.values()]
        touched = dict(zip(touched, marks.split_with_sizes(counts), strict=True))
    return nodes_before(edges, limit, touched)


@dataclass(frozen=True, eq=False)
class LinkPlaces:
    """Numbering of one edge type's links by the original ids of their destinations, then by row.

    Rows are ordered by the current ids of the destinations, so an owner's rows are consecutive.
    """

    nodes: Tensor  # int64 (nodes): destinations by original id
    ends: Tensor  # int64 (nodes): number after the last link of each of these
    before: Tensor  # int64 (nodes): links of nodes with a smaller id, by id

    @classmethod
    def of(cls, counts: Tensor, originals: Tensor | None) -> LinkPlaces:
        """Return the numbering; `counts` has the number of links of each destination."""
        nodes = torch.arange(counts.numel()) if originals is None else originals.argsort()
        return cls(nodes, counts[nodes].cumsum(0), counts.cumsum(0) - counts)

    @property
    def count(self) -> int:
        """Number of links."""
        return int(self.ends[-1]) if self.ends.numel() else 0

    def rows(self, numbers: Tensor) -> Tensor:
        """Return the rows of links with these numbers."""
        rank = torch.searchsorted(self.ends, numbers, right=True)
        starts = self.ends[rank - 1].masked_fill(rank == 0, 0)
        return self.before[self.nodes[rank]] + numbers - starts

    def numbers(self, destinations: Tensor, rows: Tensor) -> Tensor:
        """Return the numbers of links with these destinations and rows."""
        starts = torch.empty_like(self.before)
        starts[self.nodes] = torch.cat([self.ends.new_zeros(1), self.ends[:-1]])
        return starts[destinations] + rows - self.before[destinations]

    def bounds(self, offsets: Sequence[int]) -> list[int]:
        """Return the first row of each partition of the destinations, and the end of the last."""
        starts = torch.cat([self.before, self.before.new_tensor([self.count])])
        return [int(starts[offset]) for offset in offsets]


@dataclass(frozen=True, eq=False)
class HeldLinks:
    """The links with local destinations in one part of a split."""

    graph: PartitionedGraph  # before the split
    chosen: Chosen  # positions in the edges of this process
    facts: LinkColumns

    @cached_property
    def columns(self) -> Mapping[EdgeType, Mapping[str, Tensor]]:
        """Ends, labels, times and relations by type, one row per link."""
        return {t: self._columns(t, positions) for t, positions in self.chosen.items()}

    def counts(self, edge_type: EdgeType) -> Tensor:
        """Return the number of links to each local node, int64 (local nodes)."""
        if edge_type not in self.chosen:
            raise ValueError(f"links of {edge_type}: the split has those of {list(self.chosen)}")
        first, *_, end = self.graph.held.folder.bounds(edge_type[2])
        return torch.bincount(self.columns[edge_type][ENDS][:, 1] - first, minlength=end - first)

    @property
    def specs(self) -> dict[Type, dict[str, ColumnSpec]]:
        """Dtype and shape of the columns by type."""
        return {
            t: {
                name: ColumnSpec(str(fact.dtype).removeprefix("torch."), tuple(fact.shape[1:]))
                for name, fact in of_type.items()
            }
            for t, of_type in self.columns.items()
        }

    @property
    def question(self) -> RowQuestion:
        """The question for rows of these links, and the local answer."""
        counts: dict[Type, int] = {t: len(of_type[ENDS]) for t, of_type in self.columns.items()}
        return RowQuestion(_pieces(self.columns), self.specs, counts, _STORED)

    def _columns(self, edge_type: EdgeType, positions: Sequence[Tensor]) -> dict[str, Tensor]:
        held, facts = self.graph.held, self.facts
        ranges = zip(HeldEdges(held).edge_ranges(edge_type), positions, strict=True)
        found = {ENDS: torch.cat([edge_range.ends(at).T for edge_range, at in ranges])}
        for name, column in (("labels", facts.label), ("times", facts.time), ("relations", facts.relation)):
            if column is not None:
                values = torch.cat(held.column(edge_type, column, positions))
                found[name] = values if name == "labels" else values.long()
        return found


_STORED = PartitionedFeatures.wire


def _pieces(columns: Mapping[EdgeType, Mapping[str, Tensor]]) -> dict[Type, dict[str, list[Tensor]]]:
    return {t: {name: [fact] for name, fact in of_type.items()} for t, of_type in columns.items()}


@dataclass(frozen=True, eq=False)
class LinkTable(FeatureStoreBase):
    """Links as columns by link number, from the owners of their destinations."""

    features: PartitionedFeatures  # by row
    places: Mapping[EdgeType, LinkPlaces]
    negatives: Callable[[EdgeType, Tensor, Mapping[str, Tensor]], Tensor] | None = None
    # ^ from numbers of links and their columns, where negatives are not stored
    per_link: int = 0  # of these

    @property
    def specs(self) -> Specs:
        """Dtype and shape of every column, by edge type."""
        if self.negatives is None:
            return self.features.specs
        drawn = {NEGATIVES: ColumnSpec("int64", (self.per_link,))}
        return {t: {**of_type, **drawn} for t, of_type in self.features.specs.items()}

    @property
    def is_collective(self) -> bool:
        """True if a gather is collective."""
        return self.features.is_collective

    def local_rows(self, type_: Type) -> range:
        """Return an empty mapping: local rows are not consecutive in link numbers."""
        return range(0)

    def gather(self, wanted: Wanted) -> Gathered:
        """Return the columns of the links with these numbers."""
        rows = {t: self._rows(t, of_type) for t, of_type in wanted.items()}
        found = self.features.gather(rows)
        for type_, of_type in wanted.items():
            if NEGATIVES in of_type.columns and self.negatives is not None:
                assert isinstance(type_, tuple)
                found[type_][NEGATIVES] = self.negatives(type_, of_type.ids, found[type_])
            found[type_] = {name: found[type_][name][: of_type.limits.get(name)] for name in of_type.columns}
        return found

    def _rows(self, type_: Type, wanted: Rows) -> Rows:
        assert isinstance(type_, tuple)
        ids = self.places[type_].rows(wanted.ids)
        if self.negatives is None or NEGATIVES not in wanted.columns:
            return replace(wanted, ids=ids)
        return Rows(ids, tuple(self.features.specs[type_]))  # negatives are drawn from the other columns


@dataclass(frozen=True, eq=False)
class PartitionedLinks(LinkList):
    """Links stored by the owners of their destinations. A step's links are fetched with the step.

    Reads are collective if owners are ranks. Batches are bit-identical to those of `Links` in this order.
    """

    is_collective: ClassVar[bool] = True  # if owners are ranks
    where: ClassVar[str] = (
        "the links are partitioned like the edges; get a subset with "
        'links.rows(edge_type, numbers), or open the graph with placement="features" or in one process'
    )

    num_links: Mapping[EdgeType, int]  # of all owners, by type
    table: LinkTable  # ends and facts, by type and link number
    digests: Callable[[EdgeType], int]  # see `links_digest`

    @property
    def counts(self) -> Mapping[EdgeType, int]:
        """Number of links by edge type."""
        return self.num_links

    @property
    def facts(self) -> tuple[str, ...]:
        """Names of the given columns besides the ends, as in `Links`."""
        return tuple(name for name in next(iter(self.table.specs.values())) if name != ENDS)

    @property
    def edges(self) -> Mapping[EdgeType, Tensor]:
        """Not available, raises ValueError: no process has one tensor of all links."""
        return self.in_this_process("the ends of all links").edges

    def rows(self, edge_type: EdgeType, numbers: Tensor) -> SeedLinks:
        """Return the links of a type with these numbers, as one batch. Collective if owners are ranks."""
        links = self._fetched({edge_type: numbers})
        return replace(links.rows(edge_type, torch.arange(numbers.numel())), positions=numbers)

    def at_hand(self, step: StepShare) -> tuple[Links, StepShare]:
        """Return a step's links, and the step renumbered to them, on every rank. Collective."""
        order, wanted, first = torch.empty_like(step.order), dict[EdgeType, Tensor](), 0
        for edge_type, numbers, positions in numbers_by_type(self.counts, step.of_all_ranks):
            wanted[edge_type] = numbers
            order[positions - step.start] = torch.arange(first, first + numbers.numel())
            first += numbers.numel()
        return self._fetched(wanted), replace(step, order=order)

    def taken(self, share: StepShare) -> Seeds:
        """Return the links of a rank's share by type, in global order. Collective."""
        links, step = self.at_hand(share)
        return links.taken(step)

    def affinity_nodes(self, share: StepShare) -> Iterator[tuple[NodeType, Tensor, Tensor]]:
        """Yield the sources of the links and the positions of the links, by edge type. Collective."""
        links, step = self.at_hand(share)
        return links.affinity_nodes(step)

    def digest(self) -> str:
        """Return the hash of types, ends and columns of the links."""
        return digest_of(self._hash_into)

    def _hash_into(self, update: Callable[[bytes | memoryview], None]) -> None:
        for edge_type, count in self.counts.items():
            specs = self.table.specs[edge_type]
            facts = {name: (stored_dtype(specs[name]), specs[name].shape) for name in self.facts}
            update(link_list_metadata(edge_type, count, facts))
            update(self.digests(edge_type).to_bytes(8, "big"))

    def _fetched(self, numbers: Mapping[EdgeType, Tensor]) -> Links:
        """Fetch the links with these numbers to this process."""
        columns = (ENDS, *self.facts)
        found = self.table.gather({t: Rows(of_type, columns) for t, of_type in numbers.items()})
        facts = {name: {t: found[t][name] for t in numbers} for name in self.facts}
        return Links({t: found[t][ENDS].T.contiguous() for t in numbers}, **facts)


def owned_links(
    links: HeldLinks, drawn: PartitionedGraph, key: DrawKey, part: object = None
) -> PartitionedLinks:
    """Return the links of one split part as a list, numbered by the original ids of their destinations.

    Negatives are drawn from the graph `drawn`: over ranks now, and over servers on request for the links of a
    batch. `part` names the part to owners that are servers. Collective over ranks.
    """
    graph, owners = links.graph, links.graph.owners
    book, originals = graph.held.folder.book, graph.nodes.originals
    places = {
        t: LinkPlaces.of(
            counts_of_all_nodes(owners, book.offsets[t[2]], links.counts(t), LinkCounts(t, part)),
            originals.get(t[2]),
        )
        for t in links.chosen
    }
    offsets: dict[Type, list[int]] = {t: of.bounds(book.offsets[t[2]]) for t, of in places.items()}
    columns, specs = links.columns, links.specs
    negatives = partial(_negatives, drawn, links.facts, key) if links.facts.negatives else None
    numbers = {t: _own_numbers(owners, places[t], offsets[t], columns[t]) for t in columns}
    if negatives is not None and owners.is_collective:
        columns = {
            t: {**of_type, NEGATIVES: _drawn_now(owners, offsets[t], negatives, t, numbers[t], of_type)}
            for t, of_type in columns.items()
        }
        spec = ColumnSpec("int64", (links.facts.negatives,))
        specs, negatives = {t: {**of_type, NEGATIVES: spec} for t, of_type in specs.items()}, None
    features = PartitionedFeatures(_pieces(columns), specs, offsets, owners.after(part))
    table = LinkTable(features, places, negatives, links.facts.negatives)
    counts = {t: of.count for t, of in places.items()}
    if not owners.is_collective:
        return PartitionedLinks(counts, table, partial(_digest_of_all, counts, table))
    sums = {t: links_digest(numbers[t], list(of_type.values())) for t, of_type in columns.items()}
    words = torch.tensor([[word & 0xFFFFFFFF, word >> 32] for word in sums.values()])
    totals = summed(owners, words, LinkSums()).tolist()
    digests = {t: low + (high << 32) & (1 << 64) - 1 for t, (low, high) in zip(sums, totals, strict=True)}
    return PartitionedLinks(counts, table, digests.__getitem__)


def _own_numbers(
    owners: Owners, places: LinkPlaces, offsets: Sequence[int], columns: Mapping[str, Tensor]
) -> Tensor:
    """Return the numbers of the local links, int64 (links)."""
    first, end = owners.span(offsets, owners.own)
    return places.numbers(columns[ENDS][:, 1], torch.arange(first, end))


def _negatives(
    graph: PartitionedGraph,
    facts: LinkColumns,
    key: DrawKey,
    edge_type: EdgeType,
    numbers: Tensor,
    columns: Mapping[str, Tensor],
) -> Tensor:
    """Draw negatives of links, int64 (links, k); they depend only on the link numbers."""
    sources, relations = columns[ENDS][:, 0].contiguous(), columns.get("relations")
    wanted = Positives(sources, numbers, columns.get("times"), facts.time, relations, facts.relation)
    return graph.sample_negatives(edge_type, facts.eval_negatives, wanted, key)


def _drawn_now(
    owners: Owners,
    offsets: Sequence[int],
    negatives: Callable[[EdgeType, Tensor, Mapping[str, Tensor]], Tensor],
    edge_type: EdgeType,
    numbers: Tensor,
    columns: Mapping[str, Tensor],
) -> Tensor:
    """Draw negatives of the local links, in the same number of rounds on every rank. Collective."""
    spans = [owners.span(offsets, owner) for owner in range(owners.count)]
    most, count, found = max(end - first for first, end in spans), numbers.numel(), list[Tensor]()
    turns = max(1, -(-most // _AT_ONCE))  # one for a part of a split without links
    for turn in range(turns):
        some = slice(count * turn // turns, count * (turn + 1) // turns)
        of_turn = {name: column[some] for name, column in columns.items()}
        found.append(negatives(edge_type, numbers[some], of_turn))
    return torch.cat(found)


def _digest_of_all(counts: Mapping[EdgeType, int], table: LinkTable, edge_type: EdgeType) -> int:
    """Return the digest of a type's links from all owners, in chunks."""
    total, columns = 0, tuple(table.specs[edge_type])
    for numbers in torch.arange(counts[edge_type]).split(_AT_ONCE):
        found = table.gather({edge_type: Rows(numbers, columns)})[edge_type]
        total += links_digest(numbers, [found[name] for name in columns])
    return total & (1 << 64) - 1


@dataclass(frozen=True)
class RankPart:
    """One part of a split over all ranks: the message graph, and the target links."""

    graph: PartitionedGraph
    links: PartitionedLinks


def split_over_ranks(
    graph: PartitionedGraph, edge_types: Sequence[EdgeType], shares: Shares, key: DrawKey, facts: LinkColumns
) -> tuple[RankPart, RankPart, RankPart]:
    """Split links into training, validation and test as `split_edges` does. Collective, outside of lanes.

    A rank keeps in memory the links to its nodes, and those edges of its partitions that any part of the
    split uses for message passing. Edge ids remain the positions in the graph before the split. The split
    itself needs memory for one number per edge, and a few numbers per destination of links.
    """
    split = split_edges(held_edges(graph), edge_types, shares, key)
    views = {id(part.kept): graph.keeping(part.kept) for part in (split.train, split.val, split.test)}
    parts = []
    for draw, part in enumerate((split.train, split.val, split.test)):
        held = HeldLinks(graph, part.links, facts if draw else facts.of_training)
        parts.append(RankPart(views[id(part.kept)], owned_links(held, graph, key.plus(draw))))
    return parts[0], parts[1], parts[2]
