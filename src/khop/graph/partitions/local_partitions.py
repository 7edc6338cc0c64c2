"""Graph store and feature store over local parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from threading import Lock
from typing import NoReturn

import torch
from torch import Tensor

from khop.draw import DrawKey, DrawnNegatives, Frontier, FrontierByType, NeighborsByType, Positives
from khop.errors import Unsupported
from khop.graph import layout
from khop.graph.derived import Derived
from khop.graph.features.store import CachePlan, FeatureStoreBase, Gathered, Rows, Tensors, Wanted
from khop.graph.features.table import ColumnPieces, DiskPiece, Piece, read_rows
from khop.graph.folder import GraphFolder, copied_columns, disk_columns, feature_columns
from khop.graph.layout import edge_array
from khop.graph.needs import Need, RuleArrays, Sources, rule_needs
from khop.graph.negatives import (
    NegativeTables,
    RelatedPartners,
    by_column,
    kept_partners,
    partner_sources,
    ranks_by_source,
)
from khop.graph.partitions.book import DEGREES
from khop.graph.partitions.parts_folder import PartsFolder, check_whole, held_parts
from khop.graph.rule import Hop
from khop.graph.rule_arrays import EdgeDraws, asked_types, check_edge_type, check_hop
from khop.graph.store import CscGraph, DrawHop, NumberedGraph, NumberedNodes
from khop.kernels.csc import ChosenRows, Csc, chosen_edges, degrees_of, index_dtype
from khop.kernels.memory import expect_random_access, free_memory_bytes
from khop.kernels.owners import ByOwner, IdSlots, first_outside
from khop.schema import EdgeType, NodeType, Schema, Specs


@dataclass(frozen=True, eq=False)
class KeptEdges:
    """The remaining edges of a partition after others were removed; types without an entry have all edges."""

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
        """Return the columns of a type's kept edges, copied when they are read."""
        return ChosenRows(columns, self.positions[edge_type]) if edge_type in self.positions else columns

    def values(self, edge_type: EdgeType, values: Tensor) -> Tensor:
        """Return the values of the kept edges of a type."""
        return values[self.positions[edge_type]] if edge_type in self.positions else values

    def before(self, edge_type: EdgeType, positions: Tensor) -> Tensor:
        """Return the positions of kept edges among all edges of the partition."""
        return self.positions[edge_type][positions] if edge_type in self.positions else positions


@dataclass(frozen=True, eq=False)
class Partition:
    """Draws of in-edges for the nodes of one partition. All ids are global.

    A partition does not have columns of nodes in other partitions. Threads may share it.
    """

    folder: GraphFolder  # of the partition
    first_edges: Mapping[EdgeType, int]  # position of its first edge among the edges of all partitions
    original_ids: Mapping[NodeType, Tensor]  # int64 (nodes of the partition) by type
    source_ids: Mapping[NodeType, Tensor]  # int64 (nodes of all partitions): original ids of sources
    kept: KeptEdges = field(default_factory=KeptEdges)
    _draws: EdgeDraws = field(init=False, repr=False)

    def __post_init__(self) -> None:
        folder, entries, kept = self.folder, self.folder.manifest.edges, self.kept
        columns = folder.columns()
        # By the column that rows are sorted by: the later of the edge's time and its source's.
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
        """Build the arrays that rules need."""
        for need in rule_needs(needs):
            _ = self._draws.arrays[need]

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
    """Raise ValueError for a frontier node that is not in any part."""
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
    An edge is identified by its position among all original edges, even if some edges are excluded.
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
        """The edge types with excluded edges."""
        return frozenset(edge_type for part in self.parts for edge_type in part.kept.positions)

    def check_unthinned(self, edge_type: EdgeType) -> None:
        """Raise Unsupported if edges of a type are excluded: no process then knows the total."""
        check_edge_type(edge_type, self.schema)
        if edge_type in self.thinned:
            raise Unsupported(
                f"number of edges of {edge_type}: some are excluded, and each process counts only its parts' "
                "edges; split the graph in one process to count all"
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

        `kept` holds, for each part, ascending int64 positions in `rows`. The kept edges are in memory; rows
        keep their order.
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
        """Return the in-degrees of nodes of these parts, int64 (nodes)."""
        held = self.rows(edge_type)
        _check_held(self, edge_type, nodes)
        owners = ByOwner.of(nodes, self.bounds[edge_type[2]])
        shares = zip(held, owners.split(nodes), strict=True)
        return owners.joined([degrees_of(csc, of_part - first) for (csc, first), of_part in shares])

    def column(self, edge_type: EdgeType, name: str, positions: Sequence[Tensor]) -> list[Tensor]:
        """Return for each part a column of the edges at the given positions in `rows`."""
        return [part.column(edge_type, name, at) for part, at in zip(self.parts, positions, strict=True)]

    def prepare(self, needs: Collection[Need]) -> None:
        """Build the arrays that rules need, for each part."""
        for part in self.parts:
            part.prepare(needs)

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw in-edges of every frontier node; see GraphStore.

        Raises ValueError for a node of a part that is not local.
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
    """Raise ValueError for a frontier node of a part that is not local."""
    bounds = held.bounds[edge_type[2]]
    position = first_outside(nodes, bounds)
    if position >= 0:
        raise ValueError(
            f"edge type {edge_type}: frontier node {int(nodes[position])}: not in "
            f"[{bounds[0]}, {bounds[-1]}), the nodes of {held_parts(held.folder)}"
        )


def joined_graph(folder: PartsFolder) -> CscGraph:
    """Join all parts into the whole graph, with global ids.

    The joined edges are stored next to the parts and memory-mapped.
    Raises ValueError if a part is not local.
    """
    check_whole(folder, "the graph in one piece")
    kept = Derived(folder.path, folder.fingerprint, folder.arrays)
    node_types = folder.schema.node_types
    return CscGraph(
        folder.schema,
        {node_type: folder.num_nodes(node_type) for node_type in node_types},
        {edge_type: _joined(folder, edge_type, kept) for edge_type in folder.schema.edge_types},
        {node_type: folder.original_ids(node_type) for node_type in node_types},
        folder.columns(),
        bounds=folder.book.offsets,
    )


def _joined(folder: PartsFolder, edge_type: EdgeType, kept: Derived) -> Csc:
    """Join the rows of part 0, then the rows of part 1, and so on; row offsets continue across parts."""
    pieces = [part.csc(edge_type) for part in folder.parts]
    first_edges = folder.book.first_edges(edge_type)

    def offsets() -> Tensor:
        for piece in pieces:
            piece.check_rows()
        last = torch.tensor(first_edges[-1:])
        starts = (start for start, _ in pairwise(first_edges))
        return torch.cat([*(p.indptr[:-1] + start for p, start in zip(pieces, starts, strict=True)), last])

    def kept_array(name: str, count: int, dtype: torch.dtype, make: Callable[[], Sequence[Tensor]]) -> Tensor:
        file = layout.edge_array(edge_type, name).removesuffix(".npy")
        sources = [f"{part.path.name}/{layout.edge_array(edge_type, name)}" for part in folder.parts]
        return kept.joined(file, count, make, sources, str(dtype).removeprefix("torch."))

    indices = [piece.indices for piece in pieces]
    joined = Csc(
        kept_array("indptr", folder.num_nodes(edge_type[2]) + 1, torch.int64, lambda: [offsets()]),
        kept_array("indices", first_edges[-1], indices[0].dtype, lambda: indices),
    )
    expect_random_access(joined.indptr)
    expect_random_access(joined.indices)
    return joined


Pairs = tuple[Tensor, Tensor]  # global ids: sources and destinations, int32 or int64 (edges) each


@dataclass(frozen=True)
class PartsLinks:
    """The edges of local parts for draws of negatives.

    Each part stores the edges of its destinations. It also has the edges of its sources if the graph has the
    reverse edge type. Otherwise all parts are needed, or functions that query other processes, which are
    collective over ranks.
    """

    held: LocalPartitions
    counted: Callable[[EdgeType, Tensor], Tensor] | None = None  # from local in-degrees to those of all nodes
    connected: Callable[[EdgeType, Pairs], Pairs] | None = None  # from local edges to those of local sources

    def in_degrees(self, edge_type: EdgeType) -> Tensor:
        """Return the in-degree of every destination of all parts."""
        if edge_type not in self.held.thinned:
            return self.held.folder.whole_array(layout.edge_array(edge_type, DEGREES)).long()
        assert self.counted is not None, "edges of other parts were excluded, too"
        own = torch.cat([csc.degrees() for csc, _ in self.held.rows(edge_type)])
        return self.counted(edge_type, own)

    def first_source(self, edge_type: EdgeType) -> int:
        """Return the global id of the first source node of the local parts."""
        return self.held.folder.bounds(edge_type[0])[0]

    def partners(self, edge_type: EdgeType, order: str | None, nodes: Tensor | None) -> Csc:
        """Return the partners of each local source, built once.

        The result is stored next to the parts unless it depends on other processes or some edges are
        excluded.
        """
        folder, held, (source, _, destination) = self.held.folder, self.held, edge_type
        first, *_, end = folder.bounds(source)
        count = folder.num_nodes(destination)

        def make() -> Csc:
            sources, destinations = self._pairs(edge_type)
            sources = sources - first
            if source == destination:  # so that no node is drawn as a negative for itself
                sources = torch.cat([sources, torch.arange(end - first, dtype=sources.dtype)])
                own = torch.arange(first, end, dtype=destinations.dtype)
                destinations = torch.cat([destinations, own])
            return ranks_by_source(sources, destinations, end - first, count, nodes)

        is_of_folder = not (self._asks_others(edge_type) or held.thinned)
        derived = Derived(folder.path, folder.fingerprint, folder.arrays) if is_of_folder else Derived()
        name = f".of-{folder.held[0]}-{folder.held[-1]}{by_column(order)}"
        asked = (edge_type, held.schema.reverse(edge_type) or edge_type)
        sources = [
            f"{part.path.name}/{file}"
            for part in folder.parts
            for of in asked
            for file in (layout.edge_array(of, "indptr"), layout.edge_array(of, "indices"))
        ]
        sources += partner_sources(edge_type, order)
        return kept_partners(derived, edge_type, name, (end - first, count), make, sources)

    def related(self, edge_type: EdgeType, column: str, nodes: Tensor | None) -> RelatedPartners:
        """Raise ValueError: partners by relation need all edges in one process."""
        refuse_relations(edge_type, column)

    def _asks_others(self, edge_type: EdgeType) -> bool:
        is_whole = len(self.held.folder.held) == self.held.folder.book.num_parts
        return not is_whole and self.held.schema.reverse(edge_type) is None

    def _pairs(self, edge_type: EdgeType) -> Pairs:
        """Return the edges with local sources."""
        folder, reverse = self.held.folder, self.held.schema.reverse(edge_type)
        if len(folder.held) == folder.book.num_parts:
            return self.own(edge_type)
        if reverse is not None:
            destinations, sources = self.own(reverse)
            return sources, destinations
        if self.connected is None:
            raise ValueError(
                f"exact negatives of {edge_type}: the partners of a source are in all "
                f"{folder.book.num_parts} parts; write the graph with the reverse edge "
                "type, EdgeTable(reverse_of=...), and partition the result, or use exact=False"
            )
        return self.connected(edge_type, self.own(edge_type))

    def own(self, edge_type: EdgeType) -> Pairs:
        """Return the edges of the local parts."""
        dtype = index_dtype(max(self.held.folder.num_nodes(end) for end in (edge_type[0], edge_type[2])))
        sources, destinations = [], []
        for csc, first in self.held.rows(edge_type):
            csc.check()
            sources.append(csc.indices.to(dtype))
            destinations.append(csc.destinations(first, dtype))
        return torch.cat(sources), torch.cat(destinations)


def refuse_relations(edge_type: EdgeType, column: str | None) -> NoReturn:
    """Raise ValueError: exact negatives by relation need all edges in one process."""
    raise ValueError(
        f"exact negatives of {edge_type} by relation {column!r}: this process has edges in parts; open the "
        'graph with placement="features", serve the whole graph, or use exact=False'
    )


@dataclass(frozen=True, eq=False)
class LocalPartitionGraph(NumberedGraph):
    """A graph store over consecutive parts. If parts are missing, it draws only for nodes of local parts.

    If all parts are local, rules that need only the edges draw from the joined edges. These are built once
    and stored next to the parts, because splitting a frontier and reordering the answers costs more than the
    draws. For other rules, such as by weight or time, each part draws for its nodes, from the arrays stored
    with it. Draws equal the draws from the unpartitioned graph: they use original ids, and rows keep their
    order. Pickles as the path of the folder. Threads may share it.
    """

    folder: PartsFolder
    schema: Schema = field(init=False, repr=False)  # of the whole graph
    nodes: NumberedNodes = field(init=False, repr=False)
    _held: LocalPartitions = field(init=False, repr=False)
    _negatives: NegativeTables = field(init=False, repr=False)
    _joined: list[CscGraph] = field(default_factory=list, repr=False)  # filled on first use
    _lock: Lock = field(default_factory=Lock, repr=False)

    def __post_init__(self) -> None:
        folder = self.folder
        held = LocalPartitions.of(folder)
        object.__setattr__(self, "schema", folder.schema)
        object.__setattr__(self, "nodes", held.nodes)
        object.__setattr__(self, "_held", held)
        tables = NegativeTables(held.nodes.counts, held.nodes.originals, folder.columns(), PartsLinks(held))
        object.__setattr__(self, "_negatives", tables)

    def num_edges(self, edge_type: EdgeType) -> int:
        """Return the number of edges of a type in all parts."""
        return self.folder.num_edges(edge_type)

    def in_degrees(self, edge_type: EdgeType, nodes: Tensor) -> Tensor:
        """Return the in-degrees of nodes of the local parts, without joining the parts."""
        return self._held.in_degrees(edge_type, nodes)

    def prepare(self, needs: Collection[Need]) -> None:
        """Build the arrays that draws need; see GraphStore."""
        self._held.prepare(needs)
        super().prepare(needs)

    def for_hops(self, hops: Sequence[Hop]) -> DrawHop:
        """Return a function that draws from the joined edges, or from each part for its nodes.

        It raises ValueError for a node of a part that is not local.
        """
        is_whole = len(self.folder.held) == self.folder.book.num_parts > 1
        needs_arrays = any(hop.rule.needs(edge_type) for hop in hops for edge_type in hop.fanouts)
        if is_whole and not needs_arrays:
            return self.in_one_piece("sampling").for_hops(hops)
        return self._held.sample_hop

    def sample_negatives(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """Draw destinations for the sources of links; see GraphStore.

        Exact negatives require that the sources are local.
        """
        check_edge_type(edge_type, self.schema)
        bounds = self.folder.bounds(edge_type[0])
        position = first_outside(positives.sources, bounds) if negatives.exact else -1
        if position >= 0:
            raise ValueError(
                f"negatives of {edge_type}: source {int(positives.sources[position])}: not in [{bounds[0]}, "
                f"{bounds[-1]}), the nodes of {held_parts(self.folder)}"
            )
        return self._negatives.draw(edge_type, negatives, positives, key)

    def in_one_piece(self, what: str) -> CscGraph:
        """Return all parts joined into one graph; see `joined_graph`. Built once."""
        if len(self.folder.held) < self.folder.book.num_parts:
            raise Unsupported(f"{what}: this process has only {held_parts(self.folder)}; open all parts")
        with self._lock:
            if not self._joined:
                self._joined.append(joined_graph(self.folder))
            return self._joined[0]

    def only(self, edge_types: Collection[EdgeType]) -> CscGraph:
        """Return the joined graph, in memory, with only these edge types; see GraphStore."""
        return self.in_one_piece("only").only(edge_types)

    def keeping(self, kept: Mapping[EdgeType, Sequence[Tensor]]) -> CscGraph:
        """Return the joined graph, in memory, with only some edges of some types; see GraphStore."""
        return self.in_one_piece("keeping").keeping(kept)

    def __reduce__(self) -> tuple[Callable[..., LocalPartitionGraph], tuple[PartsFolder]]:
        return LocalPartitionGraph, (self.folder,)


Pieces = Mapping[NodeType | EdgeType, ColumnPieces]


def column_pieces(folder: PartsFolder, places: Mapping[str, str], room_bytes: int) -> Pieces:
    """Return the columns that all open parts have, one piece per part, placed as `places` says.

    The largest of the other columns stay on disk if the parts do not fit in `room_bytes`.
    """
    specs, room_bytes = folder.schema.columns, room_bytes // max(len(folder.parts), 1)
    of_parts = [_of_part(part, places, room_bytes) for part in folder.parts]
    return {
        t: {n: tuple(of[t][n] for of in of_parts) for n in specs[t] if all(n in of[t] for of in of_parts)}
        for t in specs
    }


def is_on_disk(pieces: ColumnPieces) -> bool:
    """Return True if some column of a type is read from disk."""
    return any(isinstance(piece, DiskPiece) for of_column in pieces.values() for piece in of_column)


def keeping(pieces: Pieces, firsts: Mapping[NodeType, int], plan: CachePlan) -> Pieces:
    """Return pieces that cache planned rows of columns on disk.

    The pieces of a type begin at an id in `firsts`. Planned ids outside the pieces are ignored.
    """
    return {
        t: _kept(of_type, firsts[t], plan, t) if isinstance(t, str) and t in plan.ids else of_type
        for t, of_type in pieces.items()
    }


def _of_part(
    part: GraphFolder, places: Mapping[str, str], room_bytes: int
) -> Mapping[NodeType | EdgeType, Mapping[str, Piece]]:
    files = disk_columns(part, places, room_bytes)
    columns = copied_columns(feature_columns(part, room_bytes), places)
    return {
        t: {n: DiskPiece(files[t][n]) if n in files[t] else column for n, column in of_type.items()}
        for t, of_type in columns.items()
    }


def _kept(pieces: ColumnPieces, first: int, plan: CachePlan, node_type: NodeType) -> ColumnPieces:
    names = [n for n in plan.columns[node_type] if is_on_disk({n: pieces.get(n, ())})]
    kept: dict[str, list[Piece]] = {name: list(of) for name, of in pieces.items()}
    ids = plan.ids[node_type]
    for number in range(max((len(pieces[name]) for name in names), default=0)):
        count = _rows_of(pieces[names[0]][number])
        begin, end = torch.searchsorted(ids, torch.tensor([first, first + count])).tolist()
        rows = ids[begin:end] - first
        slots = IdSlots.of(rows, count)
        for name in names:
            piece = pieces[name][number]
            if isinstance(piece, DiskPiece):
                kept[name][number] = piece.keeping(rows, slots)
        first += count
    return kept


def _rows_of(piece: Piece) -> int:
    return piece.num_rows if isinstance(piece, DiskPiece) else piece.shape[0]


@dataclass(frozen=True, eq=False)
class LocalPartitionFeatures(FeatureStoreBase):
    """A feature store over consecutive parts. An edge is identified by its global position over all parts.

    A gather only reads, so threads may share the store. The result does not depend on `threads`.
    """

    folder: PartsFolder
    threads: int = 1  # threads of one gather
    places: Mapping[str, str] = field(default_factory=dict)  # "host", "mapped" or "disk", by column name
    room_bytes: int | None = None  # memory for all parts; beyond it the largest columns stay on disk
    pieces: Mapping[NodeType | EdgeType, ColumnPieces] = field(init=False, repr=False)  # one per part

    def __post_init__(self) -> None:
        room_bytes = free_memory_bytes() // 4 * 3 if self.room_bytes is None else self.room_bytes
        object.__setattr__(self, "pieces", column_pieces(self.folder, self.places, room_bytes))

    @property
    def specs(self) -> Specs:
        """Dtype and shape of every column, by type."""
        there = self.folder.schema.columns
        return {t: {name: there[t][name] for name in of_type} for t, of_type in self.pieces.items()}

    def local_rows(self, type_: NodeType | EdgeType) -> range:
        """Return the rows of the open parts."""
        bounds = self.folder.bounds(type_)
        return range(bounds[0], bounds[-1])

    def whole_columns(self) -> Tensors:
        """Return the complete columns of every type; see `PartsFolder.columns`."""
        return self.folder.columns()

    def gather(self, wanted: Wanted) -> Gathered:
        """Gather the requested rows of each column, in the order of the ids.

        Raises ValueError that names the missing type, column or row.
        """
        return {type_: self._rows(type_, rows) for type_, rows in wanted.items()}

    def with_threads(self, threads: int) -> LocalPartitionFeatures:
        """Return a store of the same columns that uses up to `threads` threads for each gather."""
        return self._with("threads", threads)

    def cached(self, plan: CachePlan) -> LocalPartitionFeatures:
        """Return a store that caches planned rows of columns on disk.

        Unsupported if all columns are in memory.
        """
        if not any(is_on_disk(of_type) for of_type in self.pieces.values()):
            super().cached(plan)
        firsts = {t: self.local_rows(t).start for t in plan.ids}
        return self._with("pieces", keeping(self.pieces, firsts, plan))

    def _with(self, name: str, value: object) -> LocalPartitionFeatures:
        store = copy(self)  # not `replace`, which would reopen the columns
        object.__setattr__(store, name, value)
        return store

    def _rows(self, type_: NodeType | EdgeType, rows: Rows) -> dict[str, Tensor]:
        self._check(type_, rows)
        first, specs = self.folder.bounds(type_)[0], self.folder.schema.columns[type_]
        of_held = replace(rows, ids=rows.ids - first) if first else rows
        return read_rows(self.pieces[type_], specs, type_, of_held, self.threads)

    def __reduce__(self) -> tuple[Callable[..., LocalPartitionFeatures], tuple[object, ...]]:
        return LocalPartitionFeatures, (self.folder, self.threads, dict(self.places), self.room_bytes)

    def _check(self, type_: NodeType | EdgeType, rows: Rows) -> None:
        there = self.pieces
        if type_ not in there:
            raise ValueError(f"no columns of type {type_!r}; there are columns of {list(there)}")
        for name in rows.columns:
            if name not in there[type_]:
                raise ValueError(f"no column {name!r} of {type_!r}; there are {sorted(there[type_])}")
        bounds = self.folder.bounds(type_)
        position = first_outside(rows.ids, bounds)
        if position >= 0 and rows.columns:
            raise ValueError(
                f"column {rows.columns[0]!r} of {type_!r}: row id {int(rows.ids[position])} at position "
                f"{position}: must be in [{bounds[0]}, {bounds[-1]}), the rows of {held_parts(self.folder)}"
            )
