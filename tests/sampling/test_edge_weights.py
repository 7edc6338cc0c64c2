"""Weights that a rule gives to edges stay with these edges up to the batch."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

import khop
from extension.test_rule import TopK
from khop import Expansion, LinkSampler, NeighborSampler, Output
from khop.batch import Block, Sample, Subgraph
from khop.schema import EdgeType
from support.small_typed_folders import BUYS, write_typed_graph

RULE = TopK("weight")
SEEDS = {"user": torch.arange(40), "item": torch.arange(0, 60, 3)}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> khop.Graph:
    return khop.open_graph(write_typed_graph(tmp_path_factory.mktemp("graph") / "typed"))


def assert_all(graph: khop.Graph, sample: Sample) -> None:
    """Weights are the column where the edge type has it, else 1, in every layer."""
    layers: list[Block | Subgraph] = [*sample.blocks]
    turned: Mapping[EdgeType, EdgeType] = {}
    if sample.subgraph is not None:
        layers, turned = [*layers, sample.subgraph], sample.subgraph.turned
    for layer in layers:
        compared = 0
        for edge_type, adjacency in layer.adjacencies.items():
            assert adjacency.edge_ids is not None
            assert adjacency.weight is not None
            expected = torch.ones(adjacency.indices.numel())
            if turned.get(edge_type, edge_type) == BUYS:
                expected = graph.topology.columns[BUYS]["weight"][adjacency.edge_ids]
            assert torch.equal(adjacency.weight, expected)
            compared += adjacency.indices.numel()
        assert compared > 20


@pytest.mark.parametrize("expansion", list(Expansion))
def test_of_a_batch(graph: khop.Graph, expansion: Expansion) -> None:
    sampler = NeighborSampler(graph, [4, 3], rule=RULE, expansion=expansion, edge_ids=True)
    for batch in khop.Loader(sampler, SEEDS, 30, threads=1).epoch(0):
        assert_all(graph, batch.sample)
        assert_all(graph, batch.sample.map(torch.clone))


def test_of_reversed_edges(graph: khop.Graph) -> None:
    purchases = graph.only([BUYS])
    sampler = NeighborSampler(
        purchases, [4, 3], rule=RULE, expansion=Expansion.SUBGRAPH, edge_ids=True, output=Output.BIDIRECTIONAL
    )
    assert_all(graph, khop.Loader(sampler, SEEDS, 60, threads=1).batch(0, 0).sample)


def test_where_links_are_excluded(graph: khop.Graph) -> None:
    csc = graph.csc(BUYS)
    links = khop.Links({BUYS: torch.stack([csc.indices.long(), csc.destinations()])[:, :200]})
    batches = [
        khop.Loader(LinkSampler(graph, [50], rule=RULE, edge_ids=True, exclude=of), links, 200).batch(0, 0)
        for of in (None, "edge")
    ]
    every, fewer = (batch.sample.blocks[0].adjacencies[BUYS].indices.numel() for batch in batches)
    assert fewer < every
    assert_all(graph, batches[1].sample)


def test_induced_edges_have_none(graph: khop.Graph) -> None:
    with pytest.raises(ValueError, match=r"induced with TopK.*edges that are not drawn have no weights"):
        NeighborSampler(graph, [3], rule=RULE, expansion=Expansion.SUBGRAPH, output=Output.INDUCED)
