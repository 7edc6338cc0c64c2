"""The edges of some parts of a graph, whole or as far as they are wanted."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from khop.draw import DrawKey, FrontierByType, Hop, NeighborsByType
from khop.graph.edge_draws import asked_types, check_edge_type, check_hop
from khop.graph.partition import Partition
from khop.kernels.csc import Csc
from khop.partition.by_owner import ByOwner, first_outside
from khop.partition.parts_folder import PartsFolder, held_parts, open_parts
from khop.schema import EdgeType, NodeType, Schema


@dataclass(frozen=True, eq=False)
class LocalPartitions:
    """Draws in-edges of the nodes that consecutive parts own. All ids are those of the whole graph.

    Draws are those of the graph that was cut: by original ids, over rows in their order. Edges are known by
    their positions among all that were ever there, also where some are left out. Threads may share it.
    """

    folder: PartsFolder
    schema: Schema  # of the types that are wanted
    parts: tuple[Partition, ...]

    @classmethod
    def of(cls, folder: PartsFolder) -> LocalPartitions:
        """All edges of the parts of a folder that are open."""
        schema, offsets = folder.schema, folder.book.offsets
        originals = {t: folder.original_ids(t) for t in schema.node_types}
        parts = (
            Partition(
                part,
                {t: folder.book.first_edges(t)[number] for t in schema.edge_types},
                {t: originals[t][offsets[t][number] : offsets[t][number + 1]] for t in schema.node_types},
            )
            for number, part in zip(folder.held, folder.parts, strict=True)
        )
        return cls(folder, schema, tuple(parts))

    @classmethod
    def open(cls, path: str | os.PathLike[str], held: Sequence[int] | None = None) -> LocalPartitions:
        """Consecutive parts of a folder, all of them by default, mapped."""
        return cls.of(open_parts(path, held))

    @property
    def original_ids(self) -> Mapping[NodeType, Tensor]:
        """int64 (nodes of all parts): what ids were before the graph was cut."""
        return {node_type: self.folder.original_ids(node_type) for node_type in self.schema.node_types}

    @property
    def thinned(self) -> frozenset[EdgeType]:
        """The edge types of which some edges are left out."""
        return frozenset(edge_type for part in self.parts for edge_type in part.kept)

    def only(self, edge_types: Collection[EdgeType]) -> LocalPartitions:
        """The same parts with no other edge types, and the node types at their ends."""
        for edge_type in edge_types:
            check_edge_type(edge_type, self.schema)
        return replace(self, schema=self.schema.only(edge_types))

    def keeping(self, kept: Mapping[EdgeType, Sequence[Tensor]]) -> LocalPartitions:
        """The same parts with some edges of some types alone: of each part int64 positions in `rows`.

        They ascend. What is kept is in memory; rows keep their order.
        """
        parts = (
            part.keeping({t: of_parts[number] for t, of_parts in kept.items()})
            for number, part in enumerate(self.parts)
        )
        return replace(self, parts=tuple(parts))

    def rows(self, edge_type: EdgeType) -> list[tuple[Csc, int]]:
        """Of each part the in-edges of its nodes, and the first of those."""
        check_edge_type(edge_type, self.schema)
        firsts = self.folder.bounds(edge_type[2])
        return [(part.csc(edge_type), first) for part, first in zip(self.parts, firsts, strict=False)]

    def column(self, edge_type: EdgeType, name: str, positions: Sequence[Tensor]) -> list[Tensor]:
        """Of each part a column of the edges that stand at positions in `rows`."""
        return [part.column(edge_type, name, at) for part, at in zip(self.parts, positions, strict=True)]

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw in-edges of every frontier node; see GraphStore. ValueError for a node of a part not held."""
        check_hop(hop, self.schema)
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
