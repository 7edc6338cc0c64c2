"""Edges of a sampled subgraph: drawn, in both directions, or induced; and their normalized weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NoReturn

import torch
from torch import Tensor

from khop.batch import Adjacency, Block, Sample, Subgraph
from khop.draw import DrawKey, Frontier, FrontierByType
from khop.graph.rule import Hop, Rule
from khop.graph.store import DrawHop, GraphStore
from khop.kernels.edge_arrays import known_edges
from khop.sampling.node_set import NodeSet
from khop.sampling.rules.uniform import UNIFORM
from khop.schema import EdgeType, NodeType, Schema

ROWS_AT_ONCE = 1 << 14  # destinations per chunk: limits the in-edges in memory


class Output(StrEnum):
    """The edges of a subgraph.

    With any value but DIRECTIONAL, every layer uses the whole subgraph.

    Example:
        >>> graph = khop.open_graph("debian")
        >>> sampler = khop.NeighborSampler(graph, [3, 3], expansion="subgraph", output="induced")
        >>> sampler.output
        <Output.INDUCED: 'induced'>
    """

    DIRECTIONAL = "directional"
    """The drawn edges."""
    BIDIRECTIONAL = "bidirectional"
    """The drawn edges and their reverses; one of several edges between two nodes."""
    INDUCED = "induced"
    """Every edge of the graph between two of its nodes."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ValueError(f"output {value!r}: must be one of {[str(output) for output in cls]}")


def check_output(output: Output, schema: Schema) -> None:
    """Raise ValueError where reversed edges would share a type with edges of another kind."""
    for edge_type in schema.edge_types:
        turned = reversed_type(edge_type)
        clash = turned if turned != edge_type and turned in schema.edge_types else None
        clash = clash or schema.reverse_of.get(edge_type)
        if output is Output.BIDIRECTIONAL and clash:
            raise ValueError(
                f"output {output}: the graph has the reverse of {edge_type}, {clash}, as another type; "
                "use directional, because both directions exist"
            )


def reversed_type(edge_type: EdgeType) -> EdgeType:
    """Return the type of the reverses of a type's edges: the type itself if both its ends are of one type."""
    source, relation, destination = edge_type
    return edge_type if source == destination else (destination, f"rev_{relation}", source)


def bidirectional(sample: Sample) -> Sample:
    """Add the reverse of every edge, with the same edge id. Edges are ordered by (destination, source).

    Between two nodes there is one edge in each direction: the first one drawn in this direction, if any.
    """
    subgraph = sample.subgraph
    assert subgraph is not None
    adjacencies: dict[EdgeType, Adjacency] = {}
    turned: dict[EdgeType, EdgeType] = {}
    for edge_type, drawn in subgraph.adjacencies.items():
        target = reversed_type(edge_type)
        if target == edge_type:
            adjacencies[edge_type] = _both_ways(drawn)
            continue
        adjacencies[edge_type] = _by_destination(_Ends.of(drawn), drawn.num_src, drawn.num_dst)
        adjacencies[target] = _by_destination(_Ends.of(drawn).turned(), drawn.num_dst, drawn.num_src)
        turned[target] = edge_type
    return _with_edges(sample, subgraph, adjacencies, turned)


def induced(graph: GraphStore, node_set: NodeSet, sample: Sample, rows_at_once: int = ROWS_AT_ONCE) -> Sample:
    """Return the sample's nodes with every edge among them, by local destination id, then in graph order."""
    subgraph = sample.subgraph
    assert subgraph is not None
    hop = Hop(0, dict.fromkeys(graph.schema.edge_types, -1), UNIFORM, edge_ids=True)
    pieces: dict[EdgeType, list[tuple[Tensor, Tensor, Tensor]]] = {t: [] for t in graph.schema.edge_types}
    for frontier in _frontiers(sample.nodes, rows_at_once):
        for edge_type, found in graph.sample_hop(frontier, hop, DrawKey(0)).items():
            pieces[edge_type].append(known_edges(node_set.index(edge_type[0]), found))
    counts = {node_type: ids.numel() for node_type, ids in sample.nodes.items()}
    adjacencies = {t: _joined(of_type, counts[t[0]]) for t, of_type in pieces.items()}
    return _with_edges(sample, subgraph, adjacencies, {})


def _with_edges(
    sample: Sample,
    subgraph: Subgraph,
    adjacencies: Mapping[EdgeType, Adjacency],
    turned: Mapping[EdgeType, EdgeType],
) -> Sample:
    changed = replace(subgraph, adjacencies=adjacencies, edges_per_hop=None, turned=turned)
    return replace(sample, subgraph=changed, blocks=changed.blocks())


@dataclass(frozen=True)
class _Ends:
    """Edges as pairs of ends."""

    pairs: Tensor  # int64 (2, edges), sources over destinations
    edge_ids: Tensor | None  # int64 (edges)
    reverse: Tensor  # bool (edges), true for a reversed edge
    weight: Tensor | None  # float32 (edges)

    @classmethod
    def of(cls, drawn: Adjacency) -> _Ends:
        reverse = torch.zeros(drawn.indices.numel(), dtype=torch.bool)
        return cls(drawn.edge_index, drawn.edge_ids, reverse, drawn.weight)

    def turned(self) -> _Ends:
        return _Ends(self.pairs.flip(0), self.edge_ids, ~self.reverse, self.weight)

    def and_turned(self) -> _Ends:
        turned = self.turned()
        edge_ids = None if self.edge_ids is None else self.edge_ids.repeat(2)
        weight = None if self.weight is None else self.weight.repeat(2)
        pairs = torch.cat([self.pairs, turned.pairs], dim=1)
        return _Ends(pairs, edge_ids, torch.cat([self.reverse, turned.reverse]), weight)


def _both_ways(drawn: Adjacency) -> Adjacency:
    return _by_destination(_Ends.of(drawn).and_turned(), drawn.num_src, drawn.num_dst)


def _by_destination(ends: _Ends, num_src: int, num_dst: int) -> Adjacency:
    """Sort edges by destination and keep the first of the edges between two nodes."""
    sources, destinations = ends.pairs
    places, order = (destinations * num_src + sources).sort(stable=True)
    first = torch.ones_like(places, dtype=torch.bool)
    first[1:] = places[1:] != places[:-1]
    kept = order[first]
    counts = torch.bincount(destinations[kept], minlength=num_dst)
    return Adjacency(
        torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
        sources[kept].int(),
        num_src,
        None if ends.edge_ids is None else ends.edge_ids[kept],
        reverse=ends.reverse[kept],
        weight=None if ends.weight is None else ends.weight[kept],
    )


def _frontiers(nodes: Mapping[NodeType, Tensor], rows_at_once: int) -> Iterator[dict[NodeType, Frontier]]:
    """Yield all nodes in chunks. Every frontier has all types, also if there is no node at all."""
    for start in range(0, max(1, *(ids.numel() for ids in nodes.values())), rows_at_once):
        yield {t: Frontier(ids[start : start + rows_at_once]) for t, ids in nodes.items()}


def _joined(pieces: list[tuple[Tensor, Tensor, Tensor]], num_src: int) -> Adjacency:
    """Concatenate the rows of the pieces."""
    degrees = torch.cat([offsets.diff() for offsets, _, _ in pieces])
    return Adjacency(
        torch.cat([degrees.new_zeros(1), degrees.cumsum(0)]),
        torch.cat([local for _, local, _ in pieces]),
        num_src,
        torch.cat([edge_ids for _, _, edge_ids in pieces]),
    )


Degrees = Mapping[NodeType, Tensor]  # float64 (rows), at least 1


def degree_hop(rule: Rule, schema: Schema, number: int) -> Hop | None:
    """Return the hop that counts the in-edges of nodes, along all edge types, if the rule needs degrees."""
    if rule.degrees is None:
        return None
    return Hop(number, dict.fromkeys(schema.edge_types, 1), rule.degrees, edge_ids=False)


def counted_degrees(nodes: FrontierByType, draw: DrawHop, hop: Hop, key: DrawKey) -> Degrees:
    """Return the in-degree of all nodes of a sample, added up over edge types; `hop` is a `degree_hop`."""
    drawn = draw(nodes, hop, key)
    found: dict[NodeType, Tensor] = {}
    for (_, _, node_type), neighbors in drawn.items():
        drawn_per_row, weights = neighbors.offsets.diff(), neighbors.weights
        assert weights is not None
        rows = torch.repeat_interleave(drawn_per_row, output_size=weights.numel())
        degrees = torch.zeros(nodes[node_type].nodes.numel(), dtype=torch.float64, device=weights.device)
        degrees.index_copy_(0, rows, weights.double())
        found[node_type] = found[node_type] + degrees if node_type in found else degrees
    return {t: degrees.clamp_(min=1) for t, degrees in found.items()}


def normalized(sample: Sample, degrees: Degrees) -> Sample:
    """Divide the weight of every edge by the square root of the product of the degrees of its ends."""
    if sample.subgraph is not None:
        of_edges = _normalized(sample.subgraph.adjacencies, degrees)
        subgraph: Subgraph = replace(sample.subgraph, adjacencies=of_edges)
        return replace(sample, subgraph=subgraph, blocks=subgraph.blocks())
    blocks: list[Block] = [
        replace(block, adjacencies=_normalized(block.adjacencies, degrees)) for block in sample.blocks
    ]
    return replace(sample, blocks=tuple(blocks))


def _normalized(adjacencies: Mapping[EdgeType, Adjacency], degrees: Degrees) -> dict[EdgeType, Adjacency]:
    return {t: divided(adjacency, degrees.get(t[0]), degrees[t[2]]) for t, adjacency in adjacencies.items()}


def divided(adjacency: Adjacency, sources: Tensor | None, destinations: Tensor) -> Adjacency:
    """Divide weights by the degrees of sources (None: all 1) and destinations, float64 (rows)."""
    assert adjacency.weight is not None
    rows = destinations[: adjacency.num_dst]
    product = torch.repeat_interleave(rows, adjacency.indptr.diff(), output_size=adjacency.indices.numel())
    if sources is not None:  # nodes without in-edges of any type have degree 1
        product = product * sources.index_select(0, adjacency.indices)
    # Square root, product and quotient are rounded alike on every machine.
    return replace(adjacency, weight=(adjacency.weight.double() / product.sqrt()).float())
