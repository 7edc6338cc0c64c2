"""The base of graph stores: a small store keeps the protocol by its defaults, and says what it lacks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from khop import GraphStoreBase, Links, LinkSampler, Loader, NeighborSampler, UniformNegatives
from khop.draw import DrawKey, FrontierByType, NeighborsByType, Positives
from khop.errors import Unsupported
from khop.rules.rule import Hop
from khop.schema import NodeType
from support.random_graphs import EDGE, ring

INNER = ring(20, 3)


class Small(GraphStoreBase):
    """Three members, as a store from outside may have."""

    schema = INNER.schema

    def num_nodes(self, node_type: NodeType) -> int:
        return INNER.num_nodes(node_type)

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        return INNER.sample_hop(frontier, hop, key)


def test_three_members_are_enough_for_a_loader() -> None:
    small, whole = (
        Loader(NeighborSampler(graph, [2, 2], edge_ids=True), torch.arange(20), 6, shuffle=True)
        for graph in (Small(), INNER)
    )
    for ours, theirs in zip(small.epoch(0), whole.epoch(0), strict=True):
        assert torch.equal(ours.input_nodes, theirs.input_nodes)
        for block, other in zip(ours.blocks, theirs.blocks, strict=True):
            assert torch.equal(block.adjacency.edge_ids, other.adjacency.edge_ids)


def test_by_default_a_store_is_one_partition_of_this_process() -> None:
    store = Small()
    assert not store.is_collective
    assert store.original_ids("node") is None
    assert store.partition_bounds("node") == (0, 20)
    store.prepare(())


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda g: g.local_csc(EDGE), "the edges of a Small are not in this process"),
        (lambda g: g.num_edges(EDGE), "the edges of a Small are not in this process"),
        (lambda g: g.in_one_piece("save"), "save: the edges of a Small are not in this process"),
        (lambda g: g.only([EDGE]), "Small cannot leave edge types out; give the sampler fanouts of 0"),
        (lambda g: g.keeping({EDGE: [torch.arange(3)]}), "Small cannot leave edges out"),
        (
            lambda g: g.sample_negatives(
                EDGE, UniformNegatives(), Positives(torch.arange(1), torch.arange(1)), DrawKey(0)
            ),
            "Small draws no negatives; give negatives with khop.Links",
        ),
    ],
)
def test_an_operation_that_a_store_lacks_names_the_remedy(
    ask: Callable[[GraphStoreBase], object], sentence: str
) -> None:
    with pytest.raises(Unsupported, match=sentence):
        ask(Small())


def test_visits_that_cannot_be_computed_are_unknown() -> None:
    seeds = {"node": torch.arange(5)}
    assert NeighborSampler(Small(), [2]).visits(seeds, 2) is None
    assert NeighborSampler(INNER, [2]).visits(seeds, 2) is not None


def test_seeds_that_a_sampler_does_not_take_are_named() -> None:
    links = Links({EDGE: torch.tensor([[1], [0]])})
    with pytest.raises(
        ValueError, match=r"NeighborSampler takes seeds that are \['nodes'\].*links: give khop"
    ):
        Loader(NeighborSampler(INNER, [2]), links, 1)
    assert len(Loader(LinkSampler(INNER, [2]), links, 1)) == 1
