"""The GraphStore protocol, and the store of a graph with local edges."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from khop.draw import DrawKey, DrawnNegatives, FrontierByType, NeighborsByType, Positives
from khop.errors import Unsupported
from khop.graph.atomic import Meter, ProgressCallback
from khop.graph.derived import Derived
from khop.graph.features.store import FeatureStore
from khop.graph.folder import GraphFolder, open_folder
from khop.graph.inputs import Given
from khop.graph.needs import (
    ArrayStore,
    Columns,
    Need,
    RuleArrays,
    StoredArrays,
    negative_needs,
    rule_needs,
)
from khop.graph.negatives import NegativeTables, WholeLinks, number_column
from khop.graph.rule import Hop
from khop.graph.rule_arrays import EdgeDraws, RowOrder, check_edge_type, sort_notice, stored_csc
from khop.kernels.csc import ChosenRows, Csc, build_csc, chosen_edges, degrees_of
from khop.kernels.memory import expect_random_access
from khop.schema import ColumnSpec, EdgeType, NodeType, Schema

DrawHop = Callable[[FrontierByType, Hop, DrawKey], NeighborsByType]  # see `GraphStore.sample_hop`


class GraphStore(Protocol):
    """Edges, sampled one hop at a time. Custom stores subclass `GraphStoreBase`.

    Every implementation passes `khop.testing.graph_store`.
    """

    @property
    def schema(self) -> Schema:
        """Node types and edge types of the graph."""
        ...

    @property
    def is_collective(self) -> bool:
        """True if a hop is collective: every rank must then make the same number of hops."""
        ...

    @property
    def frontier_device(self) -> torch.device:
        """The device of frontiers and drawn neighbors: that of the edges."""
        ...

    @property
    def device_stores(self) -> tuple[CscGraph, FeatureStore] | None:
        """Edges and node columns that kernels of a device read; None: the CPU reads the edges."""
        ...

    @property
    def servers(self) -> object | None:
        """The servers that make batches of this graph; None: this process makes them."""
        ...

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type, over all partitions."""
        ...

    def num_edges(self, edge_type: EdgeType) -> int:
        """Return the number of edges of a type, over all partitions."""
        ...

    def in_degrees(self, edge_type: EdgeType, nodes: Tensor) -> Tensor:
        """Return the in-degrees of nodes, int64 (nodes); Unsupported if they are unknown.

        `nodes` are global ids, int64, in any order. Not collective.
        """
        ...

    def original_ids(self, node_type: NodeType) -> Tensor | None:
        """Return int64 (nodes): the ids before renumbering, which key all draws; None if never renumbered."""
        ...

    def partition_bounds(self, node_type: NodeType) -> tuple[int, ...]:
        """Return the first node id of each partition, then the end of the last one.

        A graph without partitions counts as one partition.
        """
        ...

    def prepare(self, needs: Collection[Need]) -> None:
        """Build the arrays that draws need before the first draw.

        Collective if the graph is. Must not be called in lanes, which are at different steps.
        """
        ...

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw in-edges of every frontier node.

        The result has one entry per edge type of `hop.fanouts` with its destination type in `frontier`, in
        the order of `hop.fanouts`. Empty frontiers have entries too. A draw depends only on (key, hop number,
        edge type, original node id, slot). Rows keep the frontier's order.
        """
        ...

    def for_hops(self, hops: Sequence[Hop]) -> DrawHop:
        """Return the function that draws these hops: `sample_hop` of this store, or of an inner object."""
        ...

    def sample_negatives(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """Draw destinations for the sources of links: int64 (n, per_positive), global ids.

        A draw depends only on (key, edge type, position, slot) and on the candidates. ValueError if there are
        none. Unsupported if the store does not draw negatives.
        """
        ...

    def local_csc(self, edge_type: EdgeType) -> Csc:
        """Return all edges of a type by destination; Unsupported if this process lacks some of them."""
        ...

    def in_one_piece(self, what: str) -> CscGraph:
        """Return the graph with all its edges in this process, partitions joined.

        Unsupported if this process lacks some of the edges; `what` names the caller in the error.
        """
        ...

    def only(self, edge_types: Collection[EdgeType]) -> GraphStore:
        """Return the graph with only these edge types and their node types; or Unsupported."""
        ...

    def keeping(self, kept: Mapping[EdgeType, Sequence[Tensor]]) -> GraphStore:
        """Return the graph with only some edges of the given types; or Unsupported.

        `kept` maps an edge type to the positions of the edges to keep, int64, ascending: one tensor for each
        partition that this process has. Rows keep their order.
        """
        ...


class GraphStoreBase(ABC):
    """Base of custom graph stores: a subclass has `schema`, `num_nodes` and `sample_hop`.

    The other members have defaults, for an unpartitioned graph whose edges only `sample_hop` reads.
    `GraphStore` documents each member; `khop.testing.graph_store` checks an implementation.

    Example:
        >>> class Counting(khop.GraphStoreBase):
        ...     def __init__(self, inner):
        ...         self.inner, self.schema, self.hops = inner, inner.schema, 0
        ...
        ...     def num_nodes(self, node_type):
        ...         return self.inner.num_nodes(node_type)
        ...
        ...     def sample_hop(self, frontier, hop, key):
        ...         self.hops += 1
        ...         return self.inner.sample_hop(frontier, hop, key)
        >>> store = Counting(khop.open_graph("debian"))
        >>> loader = khop.Loader(khop.NeighborSampler(store, [2, 2]), range(10), batch_size=10)
        >>> batch = loader.batch(epoch=0, step=0)
        >>> store.hops
        2
    """

    @property
    def is_collective(self) -> bool:
        """True if a hop is collective: by default False."""
        return False

    @property
    def frontier_device(self) -> torch.device:
        """The device of frontiers and drawn neighbors: by default the CPU."""
        return torch.device("cpu")

    @property
    def device_stores(self) -> tuple[CscGraph, FeatureStore] | None:
        """None: the CPU reads the edges."""
        return None

    @property
    def servers(self) -> object | None:
        """None: this process makes batches."""
        return None

    @abstractmethod
    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type, over all partitions.

        Args:
            node_type: The node type.
        """

    def num_edges(self, edge_type: EdgeType) -> int:
        """Return the number of edges of a type, over all partitions: by default the size of `local_csc`.

        Args:
            edge_type: The edge type.
        """
        return self.local_csc(edge_type).num_edges

    def in_degrees(self, edge_type: EdgeType, nodes: Tensor) -> Tensor:
        """Return the in-degrees of nodes, int64 (nodes): by default from `local_csc`.

        Args:
            edge_type: The edge type.
            nodes: Global ids of destinations, int64, in any order.
        """
        return degrees_of(self.local_csc(edge_type), nodes)

    def original_ids(self, node_type: NodeType) -> Tensor | None:
        """Return the ids before renumbering, int64 (nodes), which key all draws: by default None.

        Args:
            node_type: The node type.
        """
        return None

    def partition_bounds(self, node_type: NodeType) -> tuple[int, ...]:
        """Return the first node id of each partition, then the end of the last one: by default one partition.

        Args:
            node_type: The node type.
        """
        return (0, self.num_nodes(node_type))

    def prepare(self, needs: Collection[Need]) -> None:
        """Build the arrays that draws need: by default those of negatives, by an empty draw.

        The first draw by a rule builds the arrays of the rule.

        Args:
            needs: The arrays, as returned by `Sampler.needs`.
        """
        none = torch.empty(0, dtype=torch.int64)
        for need in negative_needs(needs):
            until = None if need.time_column is None else none
            of_relation = (None if need.relation_column is None else none, need.relation_column)
            nothing = Positives(none, none, until, need.time_column, *of_relation)
            self.sample_negatives(need.edge_type, need.negatives, nothing, DrawKey(0))

    @abstractmethod
    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw in-edges of every frontier node.

        The result has one entry per edge type of `hop.fanouts` with its destination type in `frontier`,
        in the order of `hop.fanouts`. Empty frontiers have entries too. A draw depends only on (key, hop
        number, edge type, original node id, slot). Rows keep the frontier's order.

        Args:
            frontier: Nodes to expand, by type.
            hop: Number, fanouts and rule of the hop.
            key: Key of the draws.
        """

    def for_hops(self, hops: Sequence[Hop]) -> DrawHop:
        """Return the function that draws hops: by default `sample_hop`.

        Args:
            hops: The hops.
        """
        return self.sample_hop

    def sample_negatives(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """Draw destinations for the sources of links, int64 (n, per_positive): by default Unsupported.

        Args:
            edge_type: Edge type of the links.
            negatives: Distribution of the negatives.
            positives: Sources of the links, and their positions.
            key: Key of the draws.
        """
        raise Unsupported(
            f"{negatives}: {type(self).__name__} does not draw negatives; give negatives with "
            "khop.Links(negatives=...) and khop.GivenNegatives()"
        )

    def local_csc(self, edge_type: EdgeType) -> Csc:
        """Return all edges of a type by destination: by default from `in_one_piece`.

        Args:
            edge_type: The edge type.
        """
        return self.in_one_piece(f"the edges of {edge_type}").csc(edge_type)

    def in_one_piece(self, what: str) -> CscGraph:
        """Return the graph with all its edges in this process: by default Unsupported.

        Args:
            what: Name of the caller, for the error.
        """
        raise Unsupported(
            f"{what}: the edges of a {type(self).__name__} are not in this process; open the graph with "
            'placement="features", or in one process'
        )

    def only(self, edge_types: Collection[EdgeType]) -> GraphStore:
        """Return the graph with only some edge types and the node types at their ends, or Unsupported.

        Args:
            edge_types: Edge types to keep.
        """
        raise Unsupported(
            f"only {list(edge_types)}: {type(self).__name__} cannot exclude edge types; give the sampler "
            "fanouts of 0 for them"
        )

    def keeping(self, kept: Mapping[EdgeType, Sequence[Tensor]]) -> GraphStore:
        """Return the graph with only some edges: by default Unsupported.

        Args:
            kept: Positions of the edges to keep by edge type, int64, ascending: one tensor per partition.
        """
        raise Unsupported(
            f"keeping some edges of {list(kept)}: {type(self).__name__} cannot exclude edges; split the "
            "links of a graph folder, by khop.open_graph and khop.split_links"
        )


@dataclass(frozen=True, eq=False)
class NumberedNodes:
    """The nodes of a graph: counts, original ids, and partition bounds."""

    counts: Mapping[NodeType, int]
    originals: Mapping[NodeType, Tensor]  # int64 (nodes), for types that were renumbered
    bounds: Mapping[NodeType, tuple[int, ...]]  # (partitions + 1) ids, for types with several partitions


class NumberedGraph(GraphStoreBase):
    """Base of stores whose process knows all nodes; a subclass sets `nodes`.

    The subclass also has `for_hops`, or `sample_hop` if it draws by itself.
    """

    nodes: NumberedNodes

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type, over all partitions."""
        if node_type not in self.nodes.counts:
            raise ValueError(f"no node type {node_type!r}; there are {list(self.nodes.counts)}")
        return self.nodes.counts[node_type]

    def original_ids(self, node_type: NodeType) -> Tensor | None:
        """Return the original ids of a node type, int64 (nodes); None if it was never renumbered."""
        return self.nodes.originals.get(node_type)

    def partition_bounds(self, node_type: NodeType) -> tuple[int, ...]:
        """Return the first node id of each partition, then the end of the last one."""
        return self.nodes.bounds.get(node_type) or super().partition_bounds(node_type)

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw in-edges of every frontier node, by the function of `for_hops`."""
        return self.for_hops([hop])(frontier, hop, key)


@dataclass(frozen=True, eq=False)
class CscGraph(NumberedGraph):
    """A graph store over CSC arrays. Threads may share it; sampling runs without the GIL.

    `originals` has the original ids of node types that were renumbered. Draws are keyed by original ids, so
    renumbering does not change draws. `columns` has the columns that rules may name; the schema lists them.
    The graph pickles as the path of its folder if it has one.
    """

    schema: Schema
    counts: Mapping[NodeType, int]
    edges: Mapping[EdgeType, Csc]
    originals: Mapping[NodeType, Tensor] = field(default_factory=dict)  # int64 (nodes)
    columns: Columns = field(default_factory=dict)  # one row per node, or per edge in CSC order
    folder: GraphFolder | None = None  # the folder that the arrays are mapped from
    bounds: Mapping[NodeType, tuple[int, ...]] = field(default_factory=dict)  # of partitions that were joined
    stored: StoredArrays | None = None  # of a graph on a device: the arrays that draws read
    candidates: Mapping[NodeType, Tensor] = field(default_factory=dict)  # bool (nodes): drawn as negatives
    nodes: NumberedNodes = field(init=False, repr=False)
    draws: EdgeDraws = field(init=False, repr=False)
    _negatives: NegativeTables = field(init=False, repr=False)

    def __post_init__(self) -> None:
        folder = self.folder
        sorted_by = {} if folder is None else {edge.type: edge.row_order for edge in folder.manifest.edges}
        named = {t: _among(csc, self.counts.get(t[0], -1)) for t, csc in self.edges.items()}
        object.__setattr__(self, "edges", named)
        object.__setattr__(self, "nodes", NumberedNodes(self.counts, self.originals, self.bounds))
        derived = Derived()
        if folder is not None:
            derived = Derived(folder.path, folder.fingerprint, folder.manifest.arrays)
        made = RuleArrays(self.edges, self.columns, self.originals, sorted_by, derived)
        arrays = made if self.stored is None else self.stored
        object.__setattr__(self, "draws", EdgeDraws(self.schema, arrays))
        links = WholeLinks(self.edges, self.counts, derived, self.columns)
        tables = NegativeTables(self.counts, self.originals, self.columns, links, self.candidates)
        object.__setattr__(self, "_negatives", tables)
        for edge_type in self.schema.edge_types:
            if edge_type not in self.edges:
                raise ValueError(
                    f"edge type {edge_type}: has no edges; there are those of {list(self.edges)}"
                )
            rows, nodes = self.edges[edge_type].num_rows, self.num_nodes(edge_type[2])
            if rows != nodes:
                raise ValueError(f"edge type {edge_type}: {rows:,} rows for {nodes:,} {edge_type[2]!r} nodes")

    def in_one_piece(self, what: str) -> CscGraph:
        """Return this graph."""
        return self

    def csc(self, edge_type: EdgeType) -> Csc:
        """Return the edges of a type by destination."""
        if edge_type not in self.edges:
            raise ValueError(f"no edge type {edge_type!r}; there are {list(self.edges)}")
        return self.edges[edge_type]

    @property
    def frontier_device(self) -> torch.device:
        """The device of frontiers and drawn neighbors: that of the edges."""
        return next((csc.indptr.device for csc in self.edges.values()), torch.device("cpu"))

    def only(self, edge_types: Collection[EdgeType]) -> CscGraph:
        """Return the graph, in memory, with only these edge types and their node types."""
        for edge_type in edge_types:
            self.csc(edge_type)
        schema = self.schema.only(edge_types)
        known = {*schema.edge_types, *schema.node_types}
        return CscGraph(
            schema,
            {t: self.counts[t] for t in schema.node_types},
            {t: self.edges[t] for t in schema.edge_types},
            {t: ids for t, ids in self.originals.items() if t in known},
            {t: of_type for t, of_type in self.columns.items() if t in known},
            bounds=self.bounds,
            candidates=self.candidates,
        )

    def keeping(self, kept: Mapping[EdgeType, Sequence[Tensor]]) -> CscGraph:
        """Return the graph, in memory, with only some edges of some types.

        `kept` maps an edge type to one tensor: the int64 positions of the edges to keep. Positions ascend;
        rows keep their order.
        """
        edges = {t: chosen_edges(self.csc(t), positions) for t, (positions,) in kept.items()}
        columns: Columns = {t: ChosenRows(self.columns.get(t, {}), at) for t, (at,) in kept.items()}
        return CscGraph(
            self.schema,
            self.counts,
            {**self.edges, **edges},
            self.originals,
            {**self.columns, **columns},
            bounds=self.bounds,
            candidates=self.candidates,
        )

    def prepare(self, needs: Collection[Need]) -> None:
        """Build now the arrays that draws need; see GraphStore."""
        for need in rule_needs(needs):
            _ = self.draws.arrays[need]
        super().prepare(needs)

    def for_hops(self, hops: Sequence[Hop]) -> DrawHop:
        """Return the function that draws from the edges."""
        return self.draws.sample_hop

    def sample_negatives(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """Draw destinations for the sources of links; see GraphStore."""
        check_edge_type(edge_type, self.schema)
        return self._negatives.draw(edge_type, negatives, positives, key)

    def __reduce__(self) -> tuple[Callable[..., CscGraph], tuple[object, ...]]:
        if self.folder is not None and not self.candidates:
            return open_csc_graph, (self.folder,)
        arrays = (self.schema, self.counts, self.edges, self.originals, self.columns, self.folder)
        return CscGraph, (*arrays, self.bounds, None, self.candidates)


def edge_values(graph: GraphStore, edge_type: EdgeType, column: str, edges: Tensor) -> Tensor:
    """Return an integer column at int64 positions in CSC order, int64 (edges).

    Unsupported if this process does not have the column of all edges. Not collective.
    """
    whole = graph.in_one_piece(f"column {column!r} of {edge_type}")
    return number_column(edge_type, column, whole.columns.get(edge_type, {}))[edges]


def open_csc_graph(folder: GraphFolder | str | os.PathLike[str]) -> CscGraph:
    """Map the graph of a folder. Returns immediately; the edges are read in the background."""
    if not isinstance(folder, GraphFolder):
        folder = open_folder(folder)
    if folder.manifest.part is not None:
        part = folder.manifest.part
        raise ValueError(
            f"{folder.path}: is part {part.number} of {part.parts} of a graph; "
            f"open the folder of all parts, {folder.path.parent}"
        )
    edges = {edge_type: folder.csc(edge_type) for edge_type in folder.schema.edge_types}
    for csc in edges.values():
        expect_random_access(csc.indptr)
        expect_random_access(csc.indices)
    originals = {node_type: folder.original_ids(node_type) for node_type in folder.schema.node_types}
    return CscGraph(
        schema=folder.schema,
        counts={node_type: folder.num_nodes(node_type) for node_type in folder.schema.node_types},
        edges=edges,
        originals={node_type: ids for node_type, ids in originals.items() if ids is not None},
        columns=folder.columns(),
        folder=folder,
    )


def drawing_from(graph: CscGraph, candidates: Mapping[NodeType, Tensor]) -> CscGraph:
    """Return the same graph; negatives are drawn from the marked nodes of some types: bool (nodes)."""
    return replace(graph, candidates={**graph.candidates, **candidates})


def stored_graph(graph: CscGraph, store: ArrayStore) -> CscGraph:
    """Return the graph for draws on a device: `store` copies edges, original ids and arrays of rules.

    Arrays of rules are copied when they are first needed. Columns stay on the host. ValueError names a
    damaged row: kernels of a device do not check edges.
    """
    edges = {edge_type: stored_csc(csc, store) for edge_type, csc in graph.edges.items()}
    originals = {node_type: store.whole(ids) for node_type, ids in graph.originals.items()}
    arrays = StoredArrays(graph.draws.arrays, edges, originals, store)
    return CscGraph(
        graph.schema,
        graph.counts,
        edges,
        originals,
        graph.columns,
        bounds=graph.bounds,
        stored=arrays,
        candidates=graph.candidates,
    )


def with_stored_indices(
    graph: CscGraph, stored: CscGraph, indices: Mapping[EdgeType, Tensor], store: ArrayStore
) -> CscGraph:
    """Return a stored copy of `graph` with other copies of its indices, and with another store."""
    edges = {t: replace(csc, indices=indices[t]) for t, csc in stored.edges.items()}
    arrays = StoredArrays(graph.draws.arrays, edges, stored.originals, store)
    return replace(stored, edges=edges, stored=arrays)


def csc_graph_from_edges(
    counts: Mapping[NodeType, int],
    edges: Mapping[EdgeType, tuple[Tensor, Tensor]],
    threads: int = 1,
    *,
    columns: Columns = MappingProxyType({}),
    sort_by: str | None = None,
    notice: ProgressCallback | None = None,
) -> CscGraph:
    """Build a graph in memory from `(sources, destinations)` per edge type.

    Rows keep the order of the edges. `columns` are the columns that rules may name: one row per node, or per
    edge in the order of `edges`. `sort_by` names a column of times. If an edge type or its source type has
    this column, the rows of the edge type are sorted by it. `notice` is called for each edge type that had to
    be sorted.
    """
    schema = Schema(tuple(counts), tuple(edges))
    row_order = RowOrder.of(sort_by, _given_columns(columns, counts, edges))
    meter = Meter(sum(end.nbytes for ends in edges.values() for end in ends), notice)
    built: dict[EdgeType, Csc] = {}
    ordered = {type_: dict(of_type) for type_, of_type in columns.items()}
    for edge_type, ends in edges.items():
        csc, order = build_csc(*ends, counts[edge_type[0]], counts[edge_type[2]], threads=threads)
        built[edge_type], order, moved = row_order.sorted(edge_type, csc, order, threads)
        if moved:
            meter.at(sort_notice(edge_type, row_order.column), sum(end.nbytes for end in ends))
        for name, column in columns.get(edge_type, {}).items():
            ordered[edge_type][name] = column[order]
    return CscGraph(replace(schema, columns=column_specs(ordered)), counts, built, columns=ordered)


def _given_columns(
    columns: Columns, counts: Mapping[NodeType, int], edges: Mapping[EdgeType, tuple[Tensor, Tensor]]
) -> list[tuple[NodeType | EdgeType, dict[str, Given]]]:
    """Check that the columns' types exist and that columns have one row per node or edge; return them."""
    checked: list[tuple[NodeType | EdgeType, dict[str, Given]]] = []
    rows: dict[NodeType | EdgeType, int] = dict(counts.items())
    rows |= {edge_type: ends[0].numel() for edge_type, ends in edges.items()}
    for type_, of_type in columns.items():
        if type_ not in rows:
            raise ValueError(f"columns of {type_!r}: no such type; there are {list(rows)}")
        kind, things = ("node type", "nodes") if isinstance(type_, str) else ("edge type", "edges")
        where = f"{kind} {type_!r}"
        given = {name: Given.of(column, f"{where}: column {name!r}") for name, column in of_type.items()}
        for column in given.values():
            column.check_rows(rows[type_], f"{where} has {rows[type_]:,} {things}")
        checked.append((type_, given))
    return checked


def _among(csc: Csc, num_sources: int) -> Csc:
    """Return the same edges with the number of sources set."""
    return csc if csc.num_sources == num_sources else replace(csc, num_sources=num_sources)


def column_specs(columns: Columns) -> dict[NodeType | EdgeType, dict[str, ColumnSpec]]:
    """Return the column specs of columns in memory."""
    return {
        type_: {
            name: ColumnSpec(str(column.dtype).removeprefix("torch."), tuple(column.shape[1:]))
            for name, column in of_type.items()
        }
        for type_, of_type in columns.items()
    }
