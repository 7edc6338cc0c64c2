"""The edges of some parts of a graph: all of them, or a selection."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from khop.draw import DrawKey, FrontierByType, NeighborsByType
from khop.graph.edge_draws import asked_types, check_edge_type, check_hop
from khop.graph.needs import Need
from khop.graph.partition import Partition
from khop.graph.store import NumberedNodes
from khop.kernels.csc import Csc
from khop.kernels.owners import ByOwner, first_outside
from khop.partition.parts_folder import PartsFolder, held_parts
from khop.rules.rule import Hop
from khop.schema import EdgeType, NodeType, Schema


@dataclass(frozen=True, eq=False)
class LocalPartitions:
    """The edges of consecutive parts, from which in-edges of their nodes are drawn. All ids are global.

    Draws equal the draws from the unpartitioned graph: they use original ids, and rows keep their order.
    An edge is identified by its position among all original edges, even if some edges are left out.
    Threads may share it.
    """

    folder: PartsFolder
    schema: Schema  # of the selected types
    nodes: NumberedNodes  # of all parts; original ids of the selected types
    parts: tuple[Partition, ...]

    @classmethod
    def of(cls, folder: PartsFolder) -> LocalPartitions:
        """Return all edges of the open parts of a partitioned graph."""
        schema, offsets = folder.schema, folder.book.offsets
        originals = {t: folder.original_ids(t) for t in schema.node_types}
        parts = (
            Partition(
                part,
                {t: folder.book.first_edges(t)[number] for t in schema.edge_types},
                {t: originals[t][offsets[t][number] : offsets[t][number + 1]] for t in schema.node_types},
                originals,
            )
            for number, part in zip(folder.held, folder.parts, strict=True)
        )
        counts = {t: folder.num_nodes(t) for t in schema.node_types}
        return cls(folder, schema, NumberedNodes(counts, originals, offsets), tuple(parts))

    @property
    def thinned(self) -> frozenset[EdgeType]:
        """The edge types from which some edges are left out."""
        return frozenset(edge_type for part in self.parts for edge_type in part.kept.positions)

    def only(self, edge_types: Collection[EdgeType]) -> LocalPartitions:
        """Return the same parts with only these edge types and the node types at their ends."""
        for edge_type in edge_types:
            check_edge_type(edge_type, self.schema)
        schema = self.schema.only(edge_types)
        originals = {t: self.nodes.originals[t] for t in schema.node_types}
        return replace(self, schema=schema, nodes=replace(self.nodes, originals=originals))

    def keeping(self, kept: Mapping[EdgeType, Sequence[Tensor]]) -> LocalPartitions:
        """Return the same parts with only some edges of the given types.

        `kept` holds, for each part, ascending int64 positions in `rows`. The kept edges are held in memory;
        rows keep their order.
        """
        parts = (
            part.keeping({t: of_parts[number] for t, of_parts in kept.items()})
            for number, part in enumerate(self.parts)
        )
        return replace(self, parts=tuple(parts))

    def rows(self, edge_type: EdgeType) -> list[tuple[Csc, int]]:
        """Return for each part the in-edges of its nodes and the global id of its first node."""
        check_edge_type(edge_type, self.schema)
        firsts = self.folder.bounds(edge_type[2])
        return [(part.csc(edge_type), first) for part, first in zip(self.parts, firsts, strict=False)]

    def column(self, edge_type: EdgeType, name: str, positions: Sequence[Tensor]) -> list[Tensor]:
        """Return for each part a column of the edges at the given positions in `rows`."""
        return [part.column(edge_type, name, at) for part, at in zip(self.parts, positions, strict=True)]

    def prepare(self, needs: Collection[Need]) -> None:
        """Build now the arrays that rules need, of each part."""
        for part in self.parts:
            part.prepare(needs)

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw in-edges of every frontier node; see GraphStore.

        Raises ValueError for a node of a part that is not held.
        """
        check_hop(frontier, hop, self.schema)
        asked = asked_types(frontier, hop)
        owners: dict[NodeType, ByOwner] = {}
        for edge_type in asked:
            if edge_type[2] not in owners:
                nodes = frontier[edge_type[2]].nodes
                self._check_held(edge_type, nodes)
                owners[edge_type[2]] = ByOwner.of(nodes, self.folder.bounds(edge_type[2]))
        shares = {t: of_type.frontiers(frontier[t]) for t, of_type in owners.items()}
        drawn = [
            part.sample_hop({t: of_parts[number] for t, of_parts in shares.items()}, hop, key)
            for number, part in enumerate(self.parts)
        ]
        return {t: owners[t[2]].neighbors([of_part[t] for of_part in drawn]) for t in asked}

    def _check_held(self, edge_type: EdgeType, nodes: Tensor) -> None:
        bounds = self.folder.bounds(edge_type[2])
        position = first_outside(nodes, bounds)
        if position >= 0:
            raise ValueError(
                f"edge type {edge_type}: frontier node {int(nodes[position])}: not in "
                f"[{bounds[0]}, {bounds[-1]}), the nodes of {held_parts(self.folder)}"
            )
