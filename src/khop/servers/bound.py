"""The largest batch that a request can give, computed before any work, from fanouts and `Rule.most`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from torch import Tensor

from khop.errors import Unsupported
from khop.graph.store import GraphStore
from khop.loading.columns import ColumnChoice
from khop.rules.rule import Hop
from khop.sampling.neighbor import Expansion, NeighborSampler
from khop.sampling.outputs import Output
from khop.sampling.sampler import Sampler, SeedLinks, Seeds
from khop.schema import EdgeType, NodeType, Schema
from khop.servers.frame import DTYPES
from khop.servers.json_fields import Type

_NODE, _OFFSET, _EDGE = 8, 8, 4  # bytes of a node id, an entry of indptr, and an entry of indices
_SEED = 6 * _NODE  # id and row of a seed; ends, position and label of a link
_IDS, _WEIGHT = 8, 4  # bytes of the id and the weight of an edge


def most_bytes(
    sampler: Sampler,
    columns: ColumnChoice,
    seeds: Mapping[NodeType, int],
    label_bytes: int = 0,
    nodes: Mapping[NodeType, Tensor] = MappingProxyType({}),
) -> int | None:
    """Return the most bytes of a batch of so many seeds; None if the sampler is not one of khop's.

    `label_bytes` are those of the labels of links. `nodes` are the seeds, if they are known: a first hop to
    all neighbors then counts their edges, and not all edges of the graph.
    """
    try:
        neighbors = sampler.for_kernels().neighbors
    except Unsupported:
        return None
    widths = _Widths(sampler.graph.schema, columns)
    reach = _Reach(neighbors, dict.fromkeys(sampler.graph.schema.node_types, 0) | dict(seeds), nodes)
    total = 0
    for hop in neighbors.hops:
        edges, rows = reach.expand(hop)
        per_edge = (
            _EDGE + _IDS * hop.edge_ids + _WEIGHT * any(map(hop.rule.has_weights, hop.fanouts.values()))
        )
        total += sum(count * (per_edge + widths.of_edge(t)) for t, count in edges.items())
        total += sum(_OFFSET * (rows.get(t[2], 0) + 1) for t in edges)
    if neighbors.expansion is Expansion.SUBGRAPH:  # one graph with a row for every node
        total += sum(_OFFSET * (reach.nodes[t[2]] + 1) for t in sampler.graph.schema.edge_types)
    if neighbors.output is not Output.DIRECTIONAL:  # all edges among the nodes, or both directions
        total = 2 * total + sum(
            sampler.graph.num_edges(t) * (_EDGE + _IDS + widths.of_edge(t))
            for t in sampler.graph.schema.edge_types
        )
    per_node = _NODE * (1 + neighbors.is_disjoint)  # with its tree
    total += sum(count * (per_node + widths.of_node(t)) for t, count in reach.nodes.items())
    return total + label_bytes + sum(count * (_SEED + widths.of_seed(t)) for t, count in seeds.items())


@dataclass(frozen=True)
class DrawnEnds:
    """Negatives that a sampler draws for each link, by the end that they replace."""

    sources: int
    destinations: int

    @classmethod
    def of(cls, sampler: Sampler) -> DrawnEnds:
        """Return the numbers of a sampler's negatives; 0 for one that draws none."""
        negatives = sampler.settings().get("negatives")
        ends = {"source": 0, "destination": 0}
        for part in getattr(negatives, "parts", (negatives,)):
            corrupt = getattr(part, "corrupt", "destination")
            for end in ends if corrupt == "both" else (corrupt,):
                ends[end] += getattr(part, "per_positive", 0)
        return cls(ends["source"], ends["destination"])


def label_bytes(seeds: Seeds, drawn: DrawnEnds) -> int:
    """Return the bytes of the labels of links, with those of their negatives."""
    links = [] if seeds.links is None else list(seeds.links.by_type.values())
    per_link = 1 + drawn.sources + drawn.destinations
    return sum(
        of_type.labels.nbytes * (per_link + _given(of_type))
        for of_type in links
        if of_type.labels is not None
    )


def seed_counts(seeds: Seeds, drawn: DrawnEnds) -> dict[NodeType, int]:
    """Return the number of seed nodes by type, with the ends of links and of their negatives."""
    counts = {t: ids.numel() for t, ids in seeds.nodes.items()}
    for (source, _, destination), links in ({} if seeds.links is None else seeds.links.by_type).items():
        count = links.positions.numel()
        counts[source] = counts.get(source, 0) + count * (1 + drawn.sources)
        of_destination = 1 + drawn.destinations + _given(links)
        counts[destination] = counts.get(destination, 0) + count * of_destination
    return counts


def _given(links: SeedLinks) -> int:
    """Return the number of given negatives of each link."""
    return 0 if links.negatives is None else links.negatives.shape[1]


@dataclass(frozen=True)
class _Widths:
    """Bytes of the columns of a row."""

    schema: Schema
    columns: ColumnChoice

    def of_node(self, type_: NodeType) -> int:
        return self._bytes(type_, self.columns.of_nodes.get(type_, ()))

    def of_seed(self, type_: NodeType) -> int:
        return self._bytes(type_, self.columns.of_seeds.get(type_, ()))

    def of_edge(self, type_: EdgeType) -> int:
        return self._bytes(type_, self.columns.of_edges.get(type_, ()))

    def _bytes(self, type_: Type, names: Sequence[str]) -> int:
        specs = [(name, self.schema.columns[type_][name]) for name in names]
        widened = self.columns.as_float32.get(type_, frozenset())
        return sum(
            math.prod(spec.shape) * (4 if name in widened else DTYPES[spec.dtype].itemsize)
            for name, spec in specs
        )


@dataclass
class _Reach:
    """The most nodes that the hops so far can have reached."""

    sampler: NeighborSampler
    nodes: dict[NodeType, int]
    seeds: Mapping[NodeType, Tensor]  # ids, if they are known
    last: dict[NodeType, int] = field(default_factory=dict)  # new at the last hop

    def expand(self, hop: Hop) -> tuple[dict[EdgeType, int], dict[NodeType, int]]:
        """Take a hop; return its most edges by type, and the rows that it expands."""
        is_layered = self.sampler.expansion is Expansion.LAYERED
        rows = dict(self.nodes) if is_layered or not self.last else self.last
        edges = {t: self._edges(t, fanout, hop, rows) for t, fanout in hop.fanouts.items()}
        before = dict(self.nodes)
        for (source, _, _), count in edges.items():
            limit = None if self.sampler.is_disjoint else self.sampler.graph.num_nodes(source)
            reached = self.nodes[source] + count
            self.nodes[source] = reached if limit is None else min(reached, max(limit, before[source]))
        self.last = {t: count - before[t] for t, count in self.nodes.items()}
        return edges, rows

    def _edges(self, edge_type: EdgeType, fanout: int, hop: Hop, rows: Mapping[NodeType, int]) -> int:
        """Return the most edges of a type: by the rule, or all edges of the graph (of each tree)."""
        most, count = hop.rule.most(fanout), rows.get(edge_type[2], 0)
        if most is not None:
            return count * most
        if hop.number == 1 and edge_type[2] in self.seeds:
            return _degrees(self.sampler.graph, edge_type, self.seeds[edge_type[2]])
        return self.sampler.graph.num_edges(edge_type) * (
            count if self.sampler.is_disjoint else min(count, 1)
        )


def _degrees(graph: GraphStore, edge_type: EdgeType, nodes: Tensor) -> int:
    """Return the number of in-edges of some nodes; of ids that are none, the draw raises the error."""
    known = nodes[(nodes >= 0) & (nodes < graph.num_nodes(edge_type[2]))]
    return int(graph.in_degrees(edge_type, known).sum())
