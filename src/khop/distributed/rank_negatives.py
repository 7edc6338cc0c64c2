"""Negatives drawn from edges that are partitioned across ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from khop.distributed.partition_owners import PartitionOwners
from khop.distributed.rank_links import RankLinks
from khop.draw import DrawKey, DrawnNegatives, Positives
from khop.exchange.draw_wire import NegativeWire
from khop.exchange.lanes import Lanes
from khop.exchange.peers import Message, Peers, naming
from khop.graph.negatives import NegativeTables, NothingLeft, all_drawn
from khop.kernels.owners import ByOwner, first_outside
from khop.partition.local_partitions import LocalPartitions
from khop.partition.parts_links import PartsLinks
from khop.schema import EdgeType, NodeType

ASKING = Message("asking for negatives", "id")
GETTING = Message("getting negatives", "id")
_MOST_BYTES = 1 << 32  # limit of a request or an answer; no batch reaches it


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
        for rank, message in enumerate(peers.exchange(requests, ASKING, _MOST_BYTES)):
            if rank == own:
                answers.append(nothing)
                continue
            with naming(peers, rank, ASKING):
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
