"""Link split over ranks that store partitioned edges: each rank splits its own edges.

The edges of the parts of a graph that a process holds, for splits of links.

A list of links partitioned into ranges, one per rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from khop.distributed.exchange.codec import check_below
from khop.distributed.exchange.lanes import Lanes
from khop.distributed.exchange.peers import Message, moved, naming, rounds, summed
from khop.distributed.exchange.row_wire import stored_dtype
from khop.distributed.partitioned_features import PartitionedFeatures, PartitionOwners
from khop.distributed.partitioned_graph import PartitionedGraph, of_all_nodes
from khop.draw import DrawKey, Positives
from khop.graph.features.store import FeatureStore, Rows
from khop.graph.features.table import ColumnPieces
from khop.graph.partitions.local_partitions import LocalPartitions
from khop.sampling.links.link_seeds import LinkList, Links, links_digest, told_apart
from khop.sampling.links.link_split import Chosen, Counted, EdgeRange, LinkColumns, Shares, split_edges
from khop.sampling.seeds import SeedLinks, Seeds, StepShare, digest_of, numbers_by_type
from khop.schema import ColumnSpec, EdgeType, NodeType, Schema, Type


def own_counts(counts: Tensor, of: Counted) -> Tensor:
    """Return the counts of this process alone."""
    return counts


@dataclass(frozen=True, eq=False)
class HeldEdges:
    """The edges of some parts, and sums of counts over all parts (a DistributedEdges and a ColumnEdges).

    `summing` takes the counts of this process, and returns the sum of the counts of all processes. By default
    there is no other process.
    """

    held: LocalPartitions
    summing: Callable[[Tensor, Counted], Tensor] = own_counts

    @property
    def schema(self) -> Schema:
        """The types of the graph."""
        return self.held.schema

    @property
    def original_ids(self) -> Mapping[NodeType, Tensor]:
        """Ids before partitioning, int64 (nodes of all parts), by node type."""
        return self.held.nodes.originals

    def edge_ranges(self, edge_type: EdgeType) -> Sequence[EdgeRange]:
        """Return the edges of each part."""
        return [EdgeRange(csc, first) for csc, first in self.held.rows(edge_type)]

    def total(self, counts: Tensor, of: Counted) -> Tensor:
        """Return the sum of counts over all parts."""
        return self.summing(counts, of)

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


SUMMING = Message("comparing links", "id")
ENDS = "ends"  # column of link ends; `facts` are the other columns


@dataclass(frozen=True, eq=False)
class PartitionedLinks(LinkList):
    """Links partitioned across ranks. Reads are collective: the links of a step are fetched with the step.

    A batch has the same bits as a batch of `Links` in this order.
    """

    is_collective: ClassVar[bool] = True
    where: ClassVar[str] = (
        "ranks that hold edges in parts hold links in parts, too; ask for some by "
        'links.rows(edge_type, numbers), or open the graph with placement="features" or in one process'
    )

    num_links: Mapping[EdgeType, int]  # on all ranks
    table: FeatureStore  # ends and facts, by type and link number
    digests: Mapping[EdgeType, int]  # see `links_digest`

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
        """Not available, raises ValueError: no rank has one tensor of all links."""
        return self.in_this_process("the ends of all links").edges

    def rows(self, edge_type: EdgeType, numbers: Tensor) -> SeedLinks:
        """Return the links of a type with these numbers, as one batch. Collective."""
        links = self._fetched({edge_type: numbers})
        return replace(links.rows(edge_type, torch.arange(numbers.numel())), positions=numbers)

    def at_hand(self, step: StepShare) -> tuple[Links, StepShare]:
        """Return the links of a step, and the step renumbered to them, on every rank. Collective."""
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
            update(told_apart(edge_type, count, facts))
            update(self.digests[edge_type].to_bytes(8, "big"))

    def _fetched(self, numbers: Mapping[EdgeType, Tensor]) -> Links:
        """Fetch the links with these numbers to this process."""
        columns = (ENDS, *self.facts)
        found = self.table.gather({t: Rows(of_type, columns) for t, of_type in numbers.items()})
        facts = {name: {t: found[t][name] for t in numbers} for name in self.facts}
        return Links({t: found[t][ENDS].T.contiguous() for t in numbers}, **facts)


def partitioned_links(
    counts: Mapping[EdgeType, int],
    held: Mapping[EdgeType, Mapping[str, Tensor]],
    lanes: Lanes,
) -> PartitionedLinks:
    """Build the links of all ranks; `held` are this rank's columns by name, for its `range`. Collective."""
    ranks, rank = lanes.world_size, lanes.group.rank
    offsets: dict[Type, list[int]] = {t: rank_bounds_of(count, ranks) for t, count in counts.items()}
    specs: dict[Type, dict[str, ColumnSpec]] = {
        t: {
            name: ColumnSpec(str(fact.dtype).removeprefix("torch."), tuple(fact.shape[1:]))
            for name, fact in of_type.items()
        }
        for t, of_type in held.items()
    }
    pieces: dict[Type, ColumnPieces] = {
        t: {name: [fact] for name, fact in of_type.items()} for t, of_type in held.items()
    }
    table = PartitionedFeatures(pieces, specs, offsets, PartitionOwners(ranks, rank, ranks), lanes)
    sums = [links_digest(offsets[t][rank], list(of_type.values())) for t, of_type in held.items()]
    words = torch.tensor([[word & 0xFFFFFFFF, word >> 32] for word in sums])
    totals = summed(lanes.peers, words, SUMMING).tolist()
    digests = {t: low + (high << 32) & (1 << 64) - 1 for t, (low, high) in zip(held, totals, strict=True)}
    return PartitionedLinks(counts, table, digests)


def rank_bounds_of(count: int, ranks: int) -> list[int]:
    """Return (ranks + 1) numbers: the first link of each rank among `count`, and the end of the last."""
    return [count * rank // ranks for rank in range(ranks + 1)]


DEALING = Message("dealing links", "id")
HANDING = Message("handing links on", "id")
_LINKS_AT_ONCE = 1 << 16  # in one draw of negatives


def rank_edges(graph: PartitionedGraph) -> HeldEdges:
    """Return the edges of the partitions that this rank stores."""
    return HeldEdges(graph.held, lambda counts, of: summed_over_ranks(graph, counts))


def summed_over_ranks(graph: PartitionedGraph, counts: Tensor) -> Tensor:
    """Return the sum over all partitions. Collective. Ranks that store the same partitions count once."""
    own = counts if graph.holders.is_first else torch.zeros_like(counts)
    return summed(graph.lanes.peers, own, DEALING)


@dataclass(frozen=True)
class RankPart:
    """One part of a split over all ranks: the graph for message passing, and the target links."""

    graph: PartitionedGraph
    links: PartitionedLinks


def split_over_ranks(
    graph: PartitionedGraph, edge_types: Sequence[EdgeType], shares: Shares, key: DrawKey, facts: LinkColumns
) -> tuple[RankPart, RankPart, RankPart]:
    """Split links into training, validation and test as `split_edges` does. Collective, outside of lanes.

    A rank keeps in memory the edges of its partitions that any part of the split uses for message passing.
    Edge ids remain the positions in the graph before the split. It also keeps a range of the links. The split
    itself takes one number per edge, and a few numbers per node that links lead to.
    """
    split = split_edges(rank_edges(graph), edge_types, shares, key)
    views = {id(part.kept): graph.keeping(part.kept) for part in (split.train, split.val, split.test)}
    parts = []
    for draw, part in enumerate((split.train, split.val, split.test)):
        links = rank_links(graph, part.links, facts if draw else facts.of_training, key.plus(draw))
        parts.append(RankPart(views[id(part.kept)], links))
    return parts[0], parts[1], parts[2]


def rank_links(graph: PartitionedGraph, chosen: Chosen, facts: LinkColumns, key: DrawKey) -> PartitionedLinks:
    """Return the chosen edges as a list of links, numbered by the original ids of their destinations.

    Collective, outside of lanes. Each rank gives positions in its own edges.
    """
    counts: dict[EdgeType, int] = {}
    held: dict[EdgeType, dict[str, Tensor]] = {}
    for edge_type, positions in chosen.items():
        found = _facts(graph, edge_type, positions, facts)
        numbers, counts[edge_type] = _numbers(graph, edge_type, found[ENDS][:, 1])
        held[edge_type] = _handed_on(graph, numbers, counts[edge_type], found)
        if facts.negatives:
            negatives = _eval_negatives(graph, edge_type, counts[edge_type], held[edge_type], facts, key)
            held[edge_type]["negatives"] = negatives
    return partitioned_links(counts, held, graph.lanes)


def _facts(
    graph: PartitionedGraph, edge_type: EdgeType, positions: Sequence[Tensor], facts: LinkColumns
) -> dict[str, Tensor]:
    """Return the ends, labels and times of this rank's chosen edges, one row per edge."""
    ranges_of = rank_edges(graph).edge_ranges(edge_type)
    ends = [edge_range.ends(at).T for edge_range, at in zip(ranges_of, positions, strict=True)]

    def column(name: str) -> Tensor:
        return torch.cat(graph.held.column(edge_type, name, positions))

    found = {ENDS: torch.cat(ends)}
    if facts.label is not None:
        found["labels"] = column(facts.label)
    if facts.time is not None:
        found["times"] = column(facts.time).long()
    if facts.relation is not None:
        found["relations"] = column(facts.relation).long()
    return found


def _numbers(graph: PartitionedGraph, edge_type: EdgeType, destinations: Tensor) -> tuple[Tensor, int]:
    """Return the global number of each link of this rank, int64 (links), and the total over all ranks.

    `destinations` ascend. Numbers ascend by the original ids of the destinations. Links to one node keep
    their order.
    """
    folder, peers = graph.held.folder, graph.lanes.peers
    first, *_, end = folder.bounds(edge_type[2])
    own = torch.bincount(destinations - first, minlength=end - first)
    counts = of_all_nodes(peers, graph.holders, folder.book.offsets[edge_type[2]], own)
    order = folder.original_ids(edge_type[2]).argsort()
    in_order = counts[order]
    starts = torch.empty_like(counts)
    starts[order] = in_order.cumsum(0) - in_order
    shifts = starts[first:end] - (own.cumsum(0) - own)
    return torch.arange(destinations.numel()) + shifts[destinations - first], int(counts.sum())


def _handed_on(
    graph: PartitionedGraph, numbers: Tensor, count: int, facts: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Send facts to the ranks that store them; return this rank's facts by link number. Collective."""
    peers, rank = graph.lanes.peers, graph.lanes.group.rank
    if not graph.holders.is_first:  # another rank sends the same links
        numbers, facts = numbers[:0], {name: fact[:0] for name, fact in facts.items()}
    numbers, order = numbers.sort()
    bounds = rank_bounds_of(count, peers.world_size)
    first, end = bounds[rank : rank + 2]
    held = {name: fact.new_empty(end - first, *fact.shape[1:]) for name, fact in facts.items()}
    missing = torch.ones(end - first, dtype=torch.bool)
    for turn in rounds(peers, numbers.numel(), HANDING):
        cuts = torch.searchsorted(numbers[turn], torch.tensor(bounds)).diff().tolist()
        places = []
        for of_rank, found in enumerate(moved(peers, numbers[turn].split_with_sizes(cuts), HANDING)):
            with naming(peers, of_rank, HANDING):
                check_below(found - first, end - first, "link")
            places.append(found - first)
        place = torch.cat(places)
        missing[place] = False
        for name, fact in facts.items():
            rows = moved(peers, fact[order[turn]].split_with_sizes(cuts), HANDING)
            for of_rank, (found, places_of) in enumerate(zip(rows, places, strict=True)):
                with naming(peers, of_rank, HANDING):
                    if found.shape[0] != places_of.numel():
                        raise ValueError(f"{found.shape[0]} {name}, where {places_of.numel()} links came")
            held[name].index_copy_(0, place, torch.cat(rows))
    if bool(missing.any()):
        raise ValueError(f"link {first + int(missing.int().argmax())}: no rank has sent it")
    return held


def _eval_negatives(
    graph: PartitionedGraph,
    edge_type: EdgeType,
    count: int,
    held: Mapping[str, Tensor],
    facts: LinkColumns,
    key: DrawKey,
) -> Tensor:
    """Draw negatives of the links that this rank stores, int64 (links, k). Collective.

    `count` is the number of links on all ranks.
    """
    bounds, rank = rank_bounds_of(count, graph.lanes.world_size), graph.lanes.group.rank
    first, own = bounds[rank], bounds[rank + 1] - bounds[rank]
    turns = -(-max(end - begin for begin, end in pairwise(bounds)) // _LINKS_AT_ONCE)
    drawn = torch.empty(own, facts.negatives, dtype=torch.int64)
    for turn in range(turns):
        some = slice(own * turn // turns, own * (turn + 1) // turns)
        numbers = torch.arange(first + some.start, first + some.stop)
        until = held["times"][some] if facts.time is not None else None
        relations = held["relations"][some] if facts.relation is not None else None
        sources = held[ENDS][some, 0].contiguous()
        wanted = Positives(sources, numbers, until, facts.time, relations, facts.relation)
        drawn[some] = graph.sample_negatives(edge_type, facts.eval_negatives, wanted, key)
    return drawn
