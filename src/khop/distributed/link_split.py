"""Link split over ranks that store partitioned edges: each rank splits its own edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from khop.distributed.held_edges import HeldEdges
from khop.distributed.partitioned_graph import PartitionedGraph
from khop.distributed.partitioned_links import ENDS, PartitionedLinks, partitioned_links, rank_bounds_of
from khop.distributed.rank_links import of_all_nodes
from khop.draw import DrawKey, Positives
from khop.exchange.codec import check_below
from khop.exchange.moved_rows import moved, rounds, summed
from khop.exchange.peers import Message, naming
from khop.sampling.link_split import Chosen, LinkColumns, Shares, split_edges
from khop.schema import EdgeType

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
