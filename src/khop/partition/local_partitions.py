"""The edges of some parts of a graph: all of them, or a selection."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from khop.draw import DrawKey, Frontier, FrontierByType, NeighborsByType
from khop.errors import Unsupported
from khop.graph.derived import Derived
from khop.graph.edge_draws import EdgeDraws, asked_types, check_edge_type, check_hop
from khop.graph.folder import GraphFolder
from khop.graph.layout import edge_array
from khop.graph.needs import Need, rule_needs
from khop.graph.rule_arrays import RuleArrays, Sources
from khop.graph.store import NumberedNodes
from khop.kernels.chosen_rows import ChosenRows, chosen_edges
from khop.kernels.csc import Csc, degrees_of
from khop.kernels.memory import expect_random_access
from khop.kernels.owners import ByOwner, first_outside
from khop.partition.parts_folder import PartsFolder, held_parts
from khop.rules.rule import Hop
from khop.schema import EdgeType, NodeType, Schema


@dataclass(frozen=True, eq=False)
class KeptEdges:
    """The edges of a partition that are left after others were removed; all edges of types without entry."""

    positions: Mapping[EdgeType, Tensor] = field(default_factory=dict)
    # ^ int64, ascending: positions of the kept edges in the partition

    def csc(self, edge_type: EdgeType, all_edges: Csc) -> Csc:
        """Return the kept edges of a type."""
        if edge_type in self.positions:
            return chosen_edges(all_edges, self.positions[edge_type])
        expect_random_access(all_edges.indptr)
        expect_random_access(all_edges.indices)
        return all_edges

    def columns(self, edge_type: EdgeType, columns: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the columns of the kept edges of a type, copied when they are read."""
        return ChosenRows(columns, self.positions[edge_type]) if edge_type in self.positions else columns

    def values(self, edge_type: EdgeType, values: Tensor) -> Tensor:
        """Return the values of the kept edges of a type."""
        return values[self.positions[edge_type]] if edge_type in self.positions else values

    def before(self, edge_type: EdgeType, positions: Tensor) -> Tensor:
        """Return the positions that kept edges have among all edges of the partition."""
        return self.positions[edge_type][positions] if edge_type in self.positions else positions


@dataclass(frozen=True, eq=False)
class Partition:
    """Draws of in-edges for the nodes of one partition. All ids are global.

    A partition has no columns of nodes in other partitions. Threads may share it.
    """

    folder: GraphFolder  # of the partition
    first_edges: Mapping[EdgeType, int]  # position of its first edge among the edges of all partitions
    original_ids: Mapping[NodeType, Tensor]  # int64 (own nodes) of each type
    source_ids: Mapping[NodeType, Tensor]  # int64 (nodes of all partitions): original ids of sources
    kept: KeptEdges = field(default_factory=KeptEdges)
    _draws: EdgeDraws = field(init=False, repr=False)

    def __post_init__(self) -> None:
        folder, entries, kept = self.folder, self.folder.manifest.edges, self.kept
        columns = folder.columns()
        # By the column that rows are sorted by: the later of the edge's own time and that of its source.
        times = {t.type: folder.array(edge_array(t.type, "times")) for t in entries if t.times}
        arrays = RuleArrays(
            {entry.type: kept.csc(entry.type, folder.csc(entry.type)) for entry in entries},
            {entry.type: kept.columns(entry.type, columns[entry.type]) for entry in entries},
            self.original_ids,
            {entry.type: entry.row_order for entry in entries},
            Derived() if kept.positions else Derived(folder.path, folder.fingerprint, folder.manifest.arrays),
            {t: kept.values(t, of_type) for t, of_type in times.items()},
            Sources(self.source_ids, {t: folder.schema.columns.get(t, {}) for t in folder.schema.node_types}),
        )
        object.__setattr__(self, "_draws", EdgeDraws(folder.schema, arrays))

    def prepare(self, needs: Collection[Need]) -> None:
        """Build now the arrays that rules need."""
        for need in rule_needs(needs):
            self._draws.arrays.prepare(need)

    def csc(self, edge_type: EdgeType) -> Csc:
        """Return the kept in-edges of the partition's nodes; row 0 is its first node."""
        return self._draws.arrays.edges[edge_type]

    def column(self, edge_type: EdgeType, name: str, positions: Tensor) -> Tensor:
        """Return a column of the edges at int64 positions in `csc`."""
        return self.folder.columns()[edge_type][name][self.kept.before(edge_type, positions)]

    def keeping(self, kept: Mapping[EdgeType, Tensor]) -> Partition:
        """Return the partition with only some edges of some types, at int64 positions in `csc`."""
        positions = {t: self.kept.before(t, at) for t, at in kept.items()}
        return replace(self, kept=KeptEdges({**self.kept.positions, **positions}))

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw one hop as `GraphStore.sample_hop` does, for nodes of this partition."""
        drawn = self._draws.sample_hop({t: self._rows(t, of) for t, of in frontier.items()}, hop, key)
        return {
            t: found
            if found.edges is None
            else replace(found, edges=self.kept.before(t, found.edges) + self.first_edges[t])
            for t, found in drawn.items()
        }

    def _rows(self, node_type: str, frontier: Frontier) -> Frontier:
        part = self.folder.manifest.part
        assert part is not None  # the folder holds a partition
        return replace(frontier, nodes=frontier.nodes - part.offsets[node_type][part.number])


def check_frontier_nodes(frontier: FrontierByType, hop: Hop, nodes: NumberedNodes) -> None:
    """Raise ValueError for a frontier node that is in no part."""
    for edge_type in asked_types(frontier, hop):
        ids, count = frontier[edge_type[2]].nodes, nodes.counts[edge_type[2]]
        if (position := first_outside(ids, (0, count))) >= 0:
            raise ValueError(
                f"edge type {edge_type}: frontier node {int(ids[position])}: not in [0, {count}), the "
                "nodes of all parts"
            )


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
    bounds: Mapping[NodeType, tuple[int, ...]]  # first node of each of these parts, then the end of the last
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
        bounds = {t: folder.bounds(t) for t in schema.node_types}
        return cls(folder, schema, NumberedNodes(counts, originals, offsets), bounds, tuple(parts))

    @property
    def thinned(self) -> frozenset[EdgeType]:
        """The edge types from which some edges are left out."""
        return frozenset(edge_type for part in self.parts for edge_type in part.kept.positions)

    def check_unthinned(self, edge_type: EdgeType) -> None:
        """Raise Unsupported if edges of a type are left out: no process knows the number of all of them."""
        check_edge_type(edge_type, self.schema)
        if edge_type in self.thinned:
            raise Unsupported(
                f"number of edges of {edge_type}: some are left out, and each process knows the number of "
                "its own; split the graph in one process to count them"
            )

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
        firsts = self.bounds[edge_type[2]][:-1]
        return [(part.csc(edge_type), first) for part, first in zip(self.parts, firsts, strict=True)]

    def in_degrees(self, edge_type: EdgeType, nodes: Tensor) -> Tensor:
        """Return the number of in-edges of some nodes of these parts, int64 (nodes)."""
        held = self.rows(edge_type)
        _check_held(self, edge_type, nodes)
        owners = ByOwner.of(nodes, self.bounds[edge_type[2]])
        shares = zip(held, owners.split(nodes), strict=True)
        return owners.joined([degrees_of(csc, of_part - first) for (csc, first), of_part in shares])

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
                _check_held(self, edge_type, nodes)
                owners[edge_type[2]] = ByOwner.of(nodes, self.bounds[edge_type[2]])
        shares = {t: of_type.frontiers(frontier[t]) for t, of_type in owners.items()}
        drawn = [
            part.sample_hop({t: of_parts[number] for t, of_parts in shares.items()}, hop, key)
            for number, part in enumerate(self.parts)
        ]
        return {t: owners[t[2]].neighbors([of_part[t] for of_part in drawn]) for t in asked}


def _check_held(held: LocalPartitions, edge_type: EdgeType, nodes: Tensor) -> None:
    """Raise ValueError for a frontier node of a part that is not held."""
    bounds = held.bounds[edge_type[2]]
    position = first_outside(nodes, bounds)
    if position >= 0:
        raise ValueError(
            f"edge type {edge_type}: frontier node {int(nodes[position])}: not in "
            f"[{bounds[0]}, {bounds[-1]}), the nodes of {held_parts(held.folder)}"
        )
