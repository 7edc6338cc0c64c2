"""Protocol between the multi-hop loop and the storage of the edges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from khop.draw import DrawKey, DrawnNegatives, FrontierByType, NeighborsByType, Positives
from khop.errors import Unsupported
from khop.graph.needs import Need, negative_needs
from khop.kernels.csc import Csc, degrees_of
from khop.rules.rule import Hop
from khop.schema import EdgeType, NodeType, Schema

if TYPE_CHECKING:
    from khop.graph.csc_graph import CscGraph
    from khop.graph.import_record import TimeCutOffs


class DrawsHops(Protocol):
    """An object that draws single hops: a graph store, or the part of one that reads the edges."""

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw in-edges of every frontier node; see GraphStore."""
        ...


class BatchServers(Protocol):
    """Servers that make the batches of a graph."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of the servers."""
        ...

    @property
    def name(self) -> str:
        """Name of the graph on the servers."""
        ...

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the graph, equal to that of its folder."""
        ...

    @property
    def cut_offs(self) -> TimeCutOffs | None:
        """Cut-offs of a split by time, as the graph's import recorded them; None if it records none."""
        ...


class GraphStore(Protocol):
    """Edges, sampled one hop at a time. A store of your own subclasses `GraphStoreBase`.

    Every implementation passes `khop.testing.graph_store`.
    """

    @property
    def schema(self) -> Schema:
        """Node types and edge types of the graph."""
        ...

    @property
    def is_collective(self) -> bool:
        """True if a hop asks other ranks. Every rank must then make the same number of hops."""
        ...

    @property
    def frontier_device(self) -> torch.device:
        """The device of frontiers and drawn neighbors: that of the edges."""
        ...

    @property
    def servers(self) -> BatchServers | None:
        """The servers that make batches of this graph; None: this process makes them."""
        ...

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type, over all partitions."""
        ...

    def num_edges(self, edge_type: EdgeType) -> int:
        """Return the number of edges of a type, over all partitions."""
        ...

    def in_degrees(self, edge_type: EdgeType, nodes: Tensor) -> Tensor:
        """Return the number of in-edges of some destinations, int64 (nodes); Unsupported if it is not known.

        `nodes` are global ids, int64, in any order. Not collective.
        """
        ...

    def edge_values(self, edge_type: EdgeType, column: str, edges: Tensor) -> Tensor:
        """Return int64 (edges): a column of whole numbers at int64 positions in CSC order.

        Unsupported if this process does not have the column of all edges. Not collective.
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
        """Build now the arrays that draws need, not at the first draw.

        Collective if the graph is. Lanes, which are at different steps, cannot do it.
        """
        ...

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw in-edges of every frontier node.

        The result has one entry per edge type of `hop.fanouts` with its destination type in `frontier`, in
        the order of `hop.fanouts`. Empty frontiers have entries too. A draw depends on (key, hop number, edge
        type, original node id, slot) alone. Rows keep the frontier's order.
        """
        ...

    def for_hops(self, hops: Sequence[Hop]) -> DrawsHops:
        """Return the object that carries out these hops: this store, or an inner one that draws for it."""
        ...

    def sample_negatives(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """Draw destinations for the sources of links: int64 (n, per_positive), global ids.

        A draw depends only on (key, edge type, position, slot) and on the candidates. ValueError if there are
        none. Unsupported if the store draws no negatives.
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
        """Return the graph with only these edge types and the node types at their ends; or Unsupported."""
        ...

    def keeping(self, kept: Mapping[EdgeType, Sequence[Tensor]]) -> GraphStore:
        """Return the graph with only some edges of the given types; or Unsupported.

        `kept` maps an edge type to the positions of the edges to keep, int64, ascending: one tensor for each
        partition that this process has. Rows keep their order.
        """
        ...


class GraphStoreBase(ABC):
    """A graph store of your own: a subclass has `schema`, `num_nodes` and `sample_hop`.

    The other members have defaults: a graph in one piece, whose edges only `sample_hop` reads. See GraphStore
    for what each promises.
    """

    @property
    def is_collective(self) -> bool:
        """True if a hop asks other ranks: by default False."""
        return False

    @property
    def frontier_device(self) -> torch.device:
        """The device of frontiers and drawn neighbors: by default the CPU."""
        return torch.device("cpu")

    @property
    def servers(self) -> BatchServers | None:
        """None: this process makes batches."""
        return None

    @abstractmethod
    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type."""

    def num_edges(self, edge_type: EdgeType) -> int:
        """Return the number of edges of a type: by default the size of `local_csc`."""
        return self.local_csc(edge_type).num_edges

    def in_degrees(self, edge_type: EdgeType, nodes: Tensor) -> Tensor:
        """Return the number of in-edges of some destinations, int64 (nodes): by default from `local_csc`."""
        return degrees_of(self.local_csc(edge_type), nodes)

    def edge_values(self, edge_type: EdgeType, column: str, edges: Tensor) -> Tensor:
        """Return the numbers of some edges, from `in_one_piece`."""
        what = f"column {column!r} of {edge_type}"
        return self.in_one_piece(what).edge_values(edge_type, column, edges)

    def original_ids(self, node_type: NodeType) -> Tensor | None:
        """Return None: the nodes were never renumbered."""
        return None

    def partition_bounds(self, node_type: NodeType) -> tuple[int, ...]:
        """Return the bounds of one partition with all nodes."""
        return (0, self.num_nodes(node_type))

    def prepare(self, needs: Collection[Need]) -> None:
        """Draw no negatives once for each need of them, which builds their arrays.

        The first draw by a rule builds the arrays of the rule.
        """
        none = torch.empty(0, dtype=torch.int64)
        for need in negative_needs(needs):
            until = None if need.time_column is None else none
            of_relation = (None if need.relation_column is None else none, need.relation_column)
            nothing = Positives(none, none, until, need.time_column, *of_relation)
            self.sample_negatives(need.edge_type, need.negatives, nothing, DrawKey(0))

    @abstractmethod
    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw in-edges of every frontier node; see GraphStore."""

    def for_hops(self, hops: Sequence[Hop]) -> DrawsHops:
        """Return this store."""
        return self

    def sample_negatives(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """Raise Unsupported: the store draws no negatives."""
        raise Unsupported(
            f"{negatives}: {type(self).__name__} draws no negatives; give negatives with "
            "khop.Links(negatives=...) and khop.GivenNegatives()"
        )

    def local_csc(self, edge_type: EdgeType) -> Csc:
        """Return all edges of a type by destination, from `in_one_piece`."""
        return self.in_one_piece(f"the edges of {edge_type}").csc(edge_type)

    def in_one_piece(self, what: str) -> CscGraph:
        """Raise Unsupported: the store shows its edges to `sample_hop` alone."""
        raise Unsupported(
            f"{what}: the edges of a {type(self).__name__} are not in this process; open the graph with "
            'placement="features", or in one process'
        )

    def only(self, edge_types: Collection[EdgeType]) -> GraphStore:
        """Raise Unsupported: the store cannot leave edge types out."""
        raise Unsupported(
            f"only {list(edge_types)}: {type(self).__name__} cannot leave edge types out; give the sampler "
            "fanouts of 0 for them"
        )

    def keeping(self, kept: Mapping[EdgeType, Sequence[Tensor]]) -> GraphStore:
        """Raise Unsupported: the store cannot leave edges out."""
        raise Unsupported(
            f"keeping some edges of {list(kept)}: {type(self).__name__} cannot leave edges out; split the "
            "links of a graph folder, by khop.open_graph and khop.split_links"
        )


@dataclass(frozen=True, eq=False)
class NumberedNodes:
    """The nodes of a graph: their numbers, their ids before renumbering, and the partitions of their ids."""

    counts: Mapping[NodeType, int]
    originals: Mapping[NodeType, Tensor]  # int64 (nodes), for types that were renumbered
    bounds: Mapping[NodeType, tuple[int, ...]]  # (partitions + 1) ids, for types with several partitions


class NumberedGraph(GraphStoreBase):
    """Base of the stores whose process knows all nodes; a subclass sets `nodes`.

    It also has `for_hops`, or `sample_hop` if it draws by itself.
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
        """Draw in-edges of every frontier node, by the object of `for_hops`."""
        return self.for_hops([hop]).sample_hop(frontier, hop, key)
