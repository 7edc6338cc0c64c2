"""Weights of a sample's edges, normalized by the degrees of both ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from khop.batch import Adjacency, Block, Sample, Subgraph
from khop.draw import DrawKey, Frontier
from khop.graph.store import DrawsHops
from khop.rules.rule import Hop, Rule
from khop.schema import EdgeType, NodeType, Schema

Degrees = Mapping[NodeType, Tensor]  # float64 (rows), at least 1


class HasNodes(Protocol):
    """The nodes of a sample, as `node_set.Reached` has them."""

    def counts(self) -> dict[NodeType, int]:
        """Return the number of nodes."""
        ...

    def frontier(self, start: Mapping[NodeType, int]) -> dict[NodeType, Frontier]:
        """Return the nodes in local order from `start` on."""
        ...


def degree_hop(rule: Rule, schema: Schema, number: int) -> Hop | None:
    """Return the hop that counts the in-edges of nodes, along all edge types, if the rule needs degrees."""
    if rule.degrees is None:
        return None
    return Hop(number, dict.fromkeys(schema.edge_types, 1), rule.degrees, edge_ids=False)


def counted_degrees(node_set: HasNodes, graph: DrawsHops, hop: Hop, key: DrawKey) -> Degrees:
    """Return the in-degree of each node of a sample, added up over edge types; `hop` is a `degree_hop`."""
    counts = node_set.counts()
    drawn = graph.sample_hop(node_set.frontier(dict.fromkeys(counts, 0)), hop, key)
    found: dict[NodeType, Tensor] = {}
    for (_, _, node_type), neighbors in drawn.items():
        drawn_per_row, weights = neighbors.offsets.diff(), neighbors.weights
        assert weights is not None
        rows = torch.repeat_interleave(drawn_per_row, output_size=weights.numel())
        degrees = torch.zeros(counts[node_type], dtype=torch.float64, device=weights.device)
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
    return {t: _divided(adjacency, degrees.get(t[0]), degrees[t[2]]) for t, adjacency in adjacencies.items()}


def _divided(adjacency: Adjacency, sources: Tensor | None, destinations: Tensor) -> Adjacency:
    assert adjacency.weight is not None
    rows = destinations[: adjacency.num_dst]
    product = torch.repeat_interleave(rows, adjacency.indptr.diff(), output_size=adjacency.indices.numel())
    if sources is not None:  # nodes without in-edges of any type have degree 1
        product = product * sources.index_select(0, adjacency.indices)
    # Square root, product and quotient are rounded alike on every machine.
    return replace(adjacency, weight=(adjacency.weight.double() / product.sqrt()).float())
