"""ShaDow: neighborhoods of seeds with all edges among their nodes."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.utils import k_hop_subgraph

import khop
from support.group_graphs import COUNT, PAIRS, among, chorded, edges_of, nodes_of

EDGES = torch.tensor(PAIRS).T


@pytest.mark.parametrize("hops", [1, 2])
def test_with_all_neighbors_a_seed_has_the_subgraph_of_torch_geometric(hops: int) -> None:
    seeds = torch.tensor([3, 23, 22, 3, 11])
    sampler = khop.ShadowSampler(chorded(), [-1] * hops, layers=3)
    batch = khop.Loader(sampler, seeds, 5).batch(0, 0)
    for group, seed in enumerate(seeds.tolist()):
        nodes, edge_index, _, _ = k_hop_subgraph(seed, hops, EDGES, num_nodes=COUNT)
        assert sorted(nodes_of(batch.sample, group)) == nodes.tolist()
        assert edges_of(batch.sample, group) == sorted(zip(*edge_index.tolist(), strict=True))
        assert nodes_of(batch.sample, group)[0] == seed
    assert batch.seeds.tolist() == seeds.tolist()
    assert batch.sample.trees["node"][batch.seed_index].tolist() == [0, 1, 2, 3, 4]
    assert len(batch.blocks) == 3


def test_seeds_of_a_group_share_their_draws_and_their_subgraph() -> None:
    """The nodes are those of DGL's sampler: drawn hop by hop for all seeds, then all edges among them."""
    sampler = khop.ShadowSampler(chorded(), [2, 1], layers=2, per_group=4)
    loader = khop.Loader(sampler, torch.arange(10), 3, seed=8)
    sample, drawn = loader.batch(0, 0).sample, set(PAIRS)
    for group, seeds in enumerate(([0, 1, 2, 3], [4, 5, 6, 7], [8, 9])):
        nodes = nodes_of(sample, group)
        assert len(nodes) == len(set(nodes)) <= len(seeds) * (1 + 2 + 2 * 1 + 1)
        assert nodes[: len(seeds)] == seeds
        assert edges_of(sample, group) == among(nodes)
        assert {(a, b) for a, b in edges_of(sample, group)} <= drawn


def test_a_group_does_not_depend_on_the_groups_beside_it() -> None:
    sampler = khop.ShadowSampler(chorded(), [2, 2], layers=2, per_group=2)
    groups = sampler.groups({"node": torch.arange(COUNT)})
    key = khop.DrawKey(5)
    orders = [
        khop.sampling.seeds.SeedOrder(groups, 12, rank=r, world_size=w, group=2) for r, w in ((0, 1), (1, 3))
    ]
    whole, part = (sampler.sample(order.share(0, 0), key) for order in orders)
    assert [nodes_of(part, 0), nodes_of(part, 1)] == [nodes_of(whole, 2), nodes_of(whole, 3)]
    assert edges_of(part, 1) == edges_of(whole, 3)


def test_rules_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="does not draw for disjoint groups"):
        khop.ShadowSampler(chorded(), [2], layers=1, rule=khop.Labor())
