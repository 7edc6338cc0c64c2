"""The edges of one part of a graph: those that lead to the nodes it owns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from khop.draw import DrawKey, Frontier, FrontierByType, Hop, NeighborsByType, Temporal
from khop.graph.derived import Derived
from khop.graph.edge_draws import EdgeDraws, asked_types
from khop.graph.folder import GraphFolder
from khop.graph.rule_arrays import RuleArrays
from khop.kernels.memory import expect_random_access
from khop.schema import EdgeType, NodeType


@dataclass(frozen=True, eq=False)
class PartGraph:
    """Draws in-edges of the nodes that a part owns. All ids are those of the whole graph.

    A part knows neither the columns nor the original ids of nodes that others own. Threads may share it.
    """

    folder: GraphFolder  # of the part
    first_edges: Mapping[EdgeType, int]  # where its edges begin among those of all parts
    original_ids: Mapping[NodeType, Tensor]  # int64 (own nodes) of each type
    _draws: EdgeDraws = field(init=False, repr=False)

    def __post_init__(self) -> None:
        folder, entries = self.folder, self.folder.manifest.edges
        edges = {entry.type: folder.csc(entry.type) for entry in entries}
        for csc in edges.values():
            expect_random_access(csc.indptr)
            expect_random_access(csc.indices)
        columns = folder.columns()
        times = {entry.type: folder.edge_times(entry.type) for entry in entries}
        arrays = RuleArrays(
            edges,
            {entry.type: columns[entry.type] for entry in entries},
            {entry.type: entry.row_order for entry in entries},
            Derived(folder.path, folder.fingerprint),
            {edge_type: of_type for edge_type, of_type in times.items() if of_type is not None},
        )
        object.__setattr__(self, "_draws", EdgeDraws(folder.schema, self.original_ids, arrays))

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """As `GraphStore.sample_hop`, of nodes that the part owns."""
        if isinstance(hop.rule, Temporal):
            for edge_type in asked_types(frontier, hop):
                self._check_times(edge_type, hop.rule.column)
        drawn = self._draws.sample_hop({t: self._rows(t, of) for t, of in frontier.items()}, hop, key)
        return {
            t: found if found.edges is None else replace(found, edges=found.edges + self.first_edges[t])
            for t, found in drawn.items()
        }

    def _rows(self, node_type: str, frontier: Frontier) -> Frontier:
        part = self.folder.manifest.part
        assert part is not None  # the folder is a part
        return replace(frontier, nodes=frontier.nodes - part.offsets[node_type][part.number])

    def _check_times(self, edge_type: EdgeType, column: str) -> None:
        """ValueError where times lie with sources that other parts own."""
        of_sources = column in self.folder.schema.columns.get(edge_type[0], {})
        if of_sources and self.folder.manifest.edge(edge_type).row_order != column:
            raise ValueError(
                f"edge type {edge_type}: rows do not follow {column!r}, a column of its sources, which lie "
                f"in all parts; sort the graph, `khop graph sort GRAPH OUT --by {column}`, and cut that"
            )
