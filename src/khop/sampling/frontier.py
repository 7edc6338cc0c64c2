"""Custom samplers from a function that returns the edges into the nodes sampled so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.arguments import instance_of, mapping_of, shown, whole_number
from khop.batch import Sample
from khop.draw import DrawKey, Frontier, FrontierByType, Neighbors, NeighborsByType, stream
from khop.graph.rule import Hop, Rule, check_rule
from khop.graph.store import GraphStore
from khop.kernels.philox import WORD, philox
from khop.sampling.node_set import NodeSet, NodeSetPool
from khop.sampling.rules.uniform import UNIFORM
from khop.sampling.sampler import Expansion, Fanout, SamplerBase, check_seeds, expand, fanout_by_type
from khop.sampling.seeds import Seeds, check_ids
from khop.schema import EdgeType, NodeType, Schema, by_edge_type, only, sole_type


@dataclass(frozen=True)
class Edges:
    """Edges of one type, in any order, duplicates allowed: `sources[i] -> destinations[i]`.

    Args:
        sources: Global ids, int32 or int64 (edges).
        destinations: Global ids, int64 (edges).
        edge_ids: Positions in the graph's CSC order, int64 (edges); default None.
        weights: Final coefficients of a sum, float32 (edges). None (default): neighbors are averaged.
    Example:
        >>> def to_itself(layer, graph, nodes):
        ...     return khop.Edges(nodes["package"], nodes["package"])
        >>> sampler = khop.FrontierSampler(khop.open_graph("debian"), to_itself, layers=1)
        >>> khop.Loader(sampler, [3, 7], batch_size=2).batch(epoch=0, step=0).blocks[0].edge_index
        tensor([[0, 1],
                [0, 1]])
    """

    sources: Tensor
    destinations: Tensor
    edge_ids: Tensor | None = None
    weights: Tensor | None = None


EdgesByType = Mapping[EdgeType, Edges] | Mapping[str, Edges]
NodesByType = Mapping[NodeType, Tensor]


class FrontierView:
    """The graph passed to a layer's `edges_for`.

    The n-th draw adds n to the key: draws are independent.

    Args:
        graph: Graph to draw from.
        hop: Number of the hop, 1 at the seeds.
        key: Key of the batch's draws.
    Example:
        >>> def half(layer, graph: khop.FrontierView, nodes):
        ...     return graph.sample_in_edges(nodes, fanout=2)
        >>> sampler = khop.FrontierSampler(khop.open_graph("debian"), half, layers=2)
        >>> len(khop.Loader(sampler, [3, 7], batch_size=2).batch(epoch=0, step=0).blocks)
        2
    """

    def __init__(self, graph: GraphStore, hop: int, key: DrawKey) -> None:
        self._graph = graph
        self._hop = hop
        self._key = key
        self._draws = 0

    @property
    def schema(self) -> Schema:
        """Node types and edge types of the graph."""
        return self._graph.schema

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type.

        Args:
            node_type: The node type.
        """
        return self._graph.num_nodes(node_type)

    def sample_in_edges(
        self,
        nodes: Tensor | NodesByType,
        fanout: Fanout,
        rule: Rule = UNIFORM,
    ) -> dict[EdgeType, Edges]:
        """Draw in-edges of every node, with edge ids, in the order of the nodes.

        Args:
            nodes: Global ids, int64 (n); of several node types a mapping by type.
            fanout: Edges per node and edge type; -1: all.
            rule: Rule of the draws, `Uniform()` by default.
        """
        key = self._key.plus(self._draws)
        self._draws += 1
        return self._in_edges(nodes, fanout, rule, key)

    def in_edges(self, nodes: Tensor | NodesByType) -> dict[EdgeType, Edges]:
        """Return all in-edges of the nodes, with edge ids. Nothing is random.

        Args:
            nodes: Global ids, int64 (n); of several node types a mapping by type.
        """
        return self._in_edges(nodes, -1, UNIFORM, self._key)

    def random_words(self, node_type: NodeType, nodes: Tensor) -> Tensor:
        """Draw a whole number from 0 to 2^32 - 1 for every node, int64 (nodes).

        A number only depends on seed, epoch, step, layer and original node id.

        Args:
            node_type: Type of the nodes.
            nodes: Global ids, int64 (n).
        """
        check_seeds(self._graph, {node_type: nodes})
        key = self._key.plus(self._draws)
        self._draws += 1
        originals = self._graph.original_ids(node_type)
        ids = nodes.long() if originals is None else originals[nodes]
        words = torch.full_like(ids, stream(self._hop, (node_type,)))
        return philox(key.value, torch.stack([ids & WORD, ids >> 32, words, words * 0], dim=1))[:, 0]

    def out_edges(self, nodes: Tensor | NodesByType) -> dict[EdgeType, Edges]:
        """Return all out-edges of the nodes, by type: the in-edges of the reverse types, turned around.

        Types without a recorded reverse (`reverse_of`) are left out. Edges have no ids, because positions in
        the reverse type differ. Nothing is random.

        Args:
            nodes: Global ids, int64 (n); of several node types a mapping by type.
        """
        return self._turned(self.in_edges(nodes))

    def sample_out_edges(
        self, nodes: Tensor | NodesByType, fanout: Fanout, rule: Rule = UNIFORM
    ) -> dict[EdgeType, Edges]:
        """Draw out-edges of every node; see `out_edges`.

        Args:
            nodes: Global ids, int64 (n); of several node types a mapping by type.
            fanout: Edges per node and edge type; -1: all.
            rule: Rule of the draws in the reverse types, `Uniform()` by default.
        """
        return self._turned(self.sample_in_edges(nodes, fanout, rule))

    def _turned(self, drawn: dict[EdgeType, Edges]) -> dict[EdgeType, Edges]:
        reverses = {edge_type: self.schema.reverse(edge_type) for edge_type in drawn}
        if not any(reverses.values()):
            raise ValueError(
                f"out-edges of {list(drawn)} are the in-edges of reverse edge types, but the schema has "
                "none; write the graph with EdgeTable(reverse_of=...)"
            )
        return {
            reverse: Edges(edges.destinations, edges.sources.long(), None, edges.weights)
            for edge_type, edges in drawn.items()
            if (reverse := reverses[edge_type]) is not None
        }

    def _in_edges(
        self, nodes: Tensor | NodesByType, fanout: Fanout, rule: Rule, key: DrawKey
    ) -> dict[EdgeType, Edges]:
        if isinstance(nodes, Tensor):
            nodes = {sole_type(self.schema.node_types, "nodes given as one tensor"): nodes}
        mapping_of("nodes", nodes, "node types to tensors of ids; or one such tensor")
        check_rule(rule, self.schema)
        check_seeds(self._graph, nodes)
        frontier = {node_type: Frontier(ids) for node_type, ids in nodes.items()}
        hop = Hop(self._hop, fanout_by_type(self.schema, fanout), rule, edge_ids=True)
        drawn = self._graph.sample_hop(frontier, hop, key)
        return {
            edge_type: Edges(
                found.nodes,
                torch.repeat_interleave(nodes[edge_type[2]], found.offsets.diff()),
                found.edges,
                found.weights,
            )
            for edge_type, found in drawn.items()
        }


EdgesFor = Callable[[int, FrontierView, NodesByType], EdgesByType | Edges]


class FrontierSampler(SamplerBase):
    """Sampler that calls a function for the edges of each layer.

    Expansion is layered. The sample is a pure function if `edges_for` is one.

    Args:
        graph: Graph to sample.
        edges_for: Function `edges_for(layer, graph, nodes)`, called for the layers `layers - 1` (at the
            seeds) down to 0. `graph` is a `FrontierView`, `nodes` are all nodes of the batch so far, by
            type. It returns edges into these nodes, from any nodes, by edge type; with one edge type it
            may return one `Edges`.
        layers: Number of layers, at least 1.
    Raises:
        ValueError: `edges_for` is not a function, or `layers` is below 1.
    Example:
        >>> def edges_for(layer, graph, nodes):
        ...     return graph.sample_in_edges(nodes, fanout=4 if layer == 1 else 2)
        >>> sampler = khop.FrontierSampler(khop.open_graph("debian"), edges_for, layers=2)
        >>> len(khop.Loader(sampler, [3, 7], batch_size=2).batch(epoch=0, step=0).blocks)
        2
    """

    def __init__(self, graph: GraphStore, edges_for: EdgesFor, layers: int) -> None:
        super().__init__(graph)
        if not callable(edges_for):
            raise ValueError(f"edges_for {shown(edges_for)}: must be a function of (layer, graph, nodes)")
        if whole_number("layers", layers) < 1:
            raise ValueError(f"layers {layers}: must be 1 or more, one call of edges_for each")
        self._layers = layers
        self._edges_for = edges_for
        self._node_sets = NodeSetPool(graph, NodeSet)

    @property
    def num_layers(self) -> int:
        """Number of blocks in a sample: one per call of `edges_for`."""
        return self._layers

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        """Return blocks of the edges that `edges_for` returned, with rows in its order.

        Args:
            seeds: Seeds of a batch.
            key: Key of the draws.
        """

        def draw(hop: int, frontier: FrontierByType) -> NeighborsByType:
            view = FrontierView(self.graph, hop, key)
            nodes = {node_type: of_type.nodes for node_type, of_type in frontier.items()}
            edges = self._edges_for(self._layers - hop, view, nodes)
            if isinstance(edges, Edges):
                edges = {_sole_edge_type(self.graph.schema): edges}
            mapping_of("edges_for gave", edges, "edge types to khop.Edges; or one khop.Edges")
            edges = by_edge_type(edges)
            with self._node_sets.lend() as destinations:
                return _group(self.graph, edges, nodes, destinations)

        check_seeds(self.graph, seeds.nodes)
        if seeds.times is not None:
            raise ValueError("seeds have times, which edges_for does not support; leave them out")
        with self._node_sets.lend() as node_set:
            return expand(seeds, draw, self._layers, Expansion.LAYERED, node_set)


def _sole_edge_type(schema: Schema) -> EdgeType:
    return only({edge_type: edge_type for edge_type in schema.edge_types}, "edges_for gave one Edges")


def _group(
    graph: GraphStore, edges: Mapping[EdgeType, Edges], nodes: NodesByType, node_set: NodeSet
) -> NeighborsByType:
    """Group the edges of every type by destination, in the order of `nodes`."""
    for edge_type, of_type in edges.items():
        _check(graph, edge_type, of_type)
    for node_type, ids in nodes.items():
        node_set.insert(node_type, ids)
    return {
        edge_type: _group_type(edge_type, edges[edge_type], nodes[edge_type[2]].numel(), node_set)
        for edge_type in graph.schema.edge_types
        if edge_type in edges
    }


def _check(graph: GraphStore, edge_type: EdgeType, edges: Edges) -> None:
    if edge_type not in graph.schema.edge_types:
        raise ValueError(f"edges_for gave {edge_type}: not an edge type; there are {graph.schema.edge_types}")
    instance_of(f"edges_for gave {edge_type}:", edges, Edges, "give khop.Edges(sources, destinations)")
    check_ids(f"edges_for gave {edge_type}, sources", edges.sources, graph.num_nodes(edge_type[0]))
    check_ids(f"edges_for gave {edge_type}, destinations", edges.destinations, graph.num_nodes(edge_type[2]))
    lengths = {"sources": edges.sources.numel(), "destinations": edges.destinations.numel()}
    for name, column, dtype in (
        ("edge_ids", edges.edge_ids, torch.int64),
        ("weights", edges.weights, torch.float32),
    ):
        if column is None:
            continue
        instance_of(f"edges_for gave {edge_type}, {name}:", column, Tensor, f"must be {dtype} (edges)")
        if column.dtype != dtype or column.dim() != 1:
            given = f"{column.dtype} of shape {tuple(column.shape)}"
            raise ValueError(f"edges_for gave {edge_type}, {name}: {given}; must be {dtype} (edges)")
        lengths[name] = column.numel()
    if len(set(lengths.values())) > 1:
        raise ValueError(f"edges_for gave {edge_type} with {lengths}: one of each per edge is needed")


def _group_type(edge_type: EdgeType, edges: Edges, num_rows: int, node_set: NodeSet) -> Neighbors:
    rows = node_set.insert(edge_type[2], edges.destinations).long()
    strangers = edges.destinations[rows >= num_rows]
    if strangers.numel():
        raise ValueError(
            f"edges_for gave {edge_type} into node {int(strangers[0])}, which is not in "
            "`nodes`: return only edges whose destination is in `nodes`"
        )
    offsets = torch.zeros(num_rows + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(rows, minlength=num_rows), 0, out=offsets[1:])
    if bool((rows[1:] >= rows[:-1]).all()):
        return Neighbors(offsets, edges.sources, edges.edge_ids, edges.weights)
    order = rows.argsort(stable=True)
    edge_ids, weights = (None if each is None else each[order] for each in (edges.edge_ids, edges.weights))
    return Neighbors(offsets, edges.sources[order], edge_ids, weights)
