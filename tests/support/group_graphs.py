"""Small graphs for samplers of groups, and plain ways to read their samples."""

from __future__ import annotations

import torch
from torch import Tensor

import khop
from khop.batch import Sample
from khop.graph.features.table import FeatureTable
from khop.graph.store import csc_graph_from_edges
from khop.schema import EdgeType

TO: EdgeType = ("node", "to", "node")
COUNT = 24
# Both directions of a ring with chords; node 22 has a loop only, and node 23 no edges.
PAIRS = [(i, (i + step) % 22) for i in range(22) for step in (1, 5) if (i * step) % 3 != 1]
PAIRS = [*PAIRS, *((b, a) for a, b in PAIRS), (22, 22)]


def chorded() -> khop.Graph:
    """A graph of 24 nodes with columns x and y."""
    generator = torch.Generator().manual_seed(4)
    columns = {
        "node": {
            "x": torch.randn(COUNT, 5, generator=generator, dtype=torch.float64),
            "y": torch.arange(COUNT) % 3,
        }
    }
    ends = torch.tensor(PAIRS).T
    store = csc_graph_from_edges({"node": COUNT}, {TO: (ends[0], ends[1])}, columns=columns)
    return khop.Graph(store, FeatureTable(columns))


def edges_of(sample: Sample, group: int) -> list[tuple[int, int]]:
    """The edges of a group, as sorted pairs of global ids."""
    assert sample.subgraph is not None
    assert sample.trees is not None
    source, destination = sample.subgraph.adjacencies[TO].edge_index
    nodes, trees = sample.nodes["node"], sample.trees["node"]
    assert torch.equal(trees[source], trees[destination])
    chosen = trees[destination] == group
    pairs = zip(nodes[source[chosen]].tolist(), nodes[destination[chosen]].tolist(), strict=True)
    return sorted(pairs)


def nodes_of(sample: Sample, group: int) -> list[int]:
    """The nodes of a group, in the order of the sample."""
    assert sample.trees is not None
    found: list[int] = sample.nodes["node"][sample.trees["node"] == group].tolist()
    return found


def among(nodes: list[int]) -> list[tuple[int, int]]:
    """All edges of the graph among some nodes."""
    return sorted(pair for pair in PAIRS if pair[0] in nodes and pair[1] in nodes)


def sums(sample: Sample, x: Tensor) -> Tensor:
    """The weighted sum of the neighbors of each row."""
    assert sample.subgraph is not None
    adjacency = sample.subgraph.adjacencies[TO]
    assert adjacency.weight is not None
    source, destination = adjacency.edge_index
    values = adjacency.weight.double() * x[sample.nodes["node"][source]]
    return torch.zeros(adjacency.num_dst, dtype=torch.float64).index_add_(0, destination, values)
