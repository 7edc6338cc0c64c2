"""One hop over a graph in parts: the share of each owner of nodes, and the format of its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from khop.draw import DrawKey, Frontier, FrontierByType, NeighborsByType
from khop.exchange.draw_wire import HopWire
from khop.graph.edge_draws import check_hop
from khop.kernels.owners import ByOwner
from khop.partition.local_partitions import LocalPartitions, check_frontier_nodes
from khop.rules.rule import Hop
from khop.schema import EdgeType, NodeType


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
