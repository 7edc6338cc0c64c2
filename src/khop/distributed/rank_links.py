"""Exchange of connectivity between ranks that store partitioned edges, for draws of negatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.distributed.partition_owners import PartitionOwners
from khop.exchange.codec import check_below
from khop.exchange.lanes import Lanes
from khop.exchange.moved_rows import moved, rounds, sent_to_all
from khop.exchange.peers import Message, Peers, naming
from khop.partition.parts_folder import PartsFolder
from khop.partition.parts_links import Pairs
from khop.schema import EdgeType

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
