"""Edges of a sampled subgraph: the drawn edges, both directions of them, or all edges among its nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NoReturn

import torch
from torch import Tensor

from khop.batch import Adjacency, Sample, Subgraph
from khop.draw import DrawKey, Frontier
from khop.graph.store import GraphStore
from khop.kernels.known_edges import known_edges
from khop.rules.rule import Hop
from khop.rules.uniform import Uniform
from khop.sampling.node_set import NodeSet
from khop.schema import EdgeType, NodeType, Schema

ROWS_AT_ONCE = 1 << 14  # destinations per chunk: limits the in-edges in memory


class Output(StrEnum):
    """The edges of a subgraph. With any value but DIRECTIONAL, every layer uses the whole subgraph."""

    DIRECTIONAL = "directional"  # the edges drawn
    BIDIRECTIONAL = "bidirectional"  # these and their reverses; one of several edges between two nodes
    INDUCED = "induced"  # every edge of the graph between two of its nodes

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
    hop = Hop(0, dict.fromkeys(graph.schema.edge_types, -1), Uniform(), edge_ids=True)
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
