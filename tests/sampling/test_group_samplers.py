"""Cluster-GCN: the nodes of clusters and all edges among them, as torch_geometric makes them.

Draws of GraphSAINT's nodes: keyed by position, along in-edges, and ending at sinks.

ShaDow: neighborhoods of seeds with all edges among their nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import ClusterData, ClusterLoader
from torch_geometric.utils import k_hop_subgraph

import khop
from khop.draw import DrawKey
from khop.sampling.group_samplers import SaintDraw, drawn_nodes
from support.group_graphs import COUNT, PAIRS, TO, among, chorded, edges_of, nodes_of

CLUSTERS = (torch.arange(COUNT) * 7) % 5


class GivenClusters(ClusterData):
    """PyG's clusters, as given: METIS, which makes them, needs a compiled package."""

    def _metis(self, edge_index: Tensor, num_nodes: int) -> Tensor:
        return CLUSTERS


def batches_of_pyg(together: int) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    """The nodes and edges of PyG's batches, by ids of the graph."""
    data = Data(edge_index=torch.tensor(PAIRS).T, num_nodes=COUNT, ids=torch.arange(COUNT))
    clusters = GivenClusters(data, num_parts=5, log=False, keep_inter_cluster_edges=True)
    for batch in ClusterLoader(clusters, batch_size=together):
        source, destination = (batch.ids[end].tolist() for end in batch.edge_index)
        yield sorted(batch.ids.tolist()), sorted(zip(source, destination, strict=True))


@pytest.mark.parametrize("per_group", [1, 2, 4])
def test_groups_are_the_batches_of_torch_geometric(per_group: int) -> None:
    sampler = khop.ClusterSampler(chorded(), CLUSTERS, layers=3, per_group=per_group)
    loader = khop.Loader(sampler, torch.arange(COUNT), 1)
    found = [(sorted(nodes_of(b.sample, 0)), edges_of(b.sample, 0)) for b in loader.epoch(0)]
    assert found == list(batches_of_pyg(per_group))
    assert sampler.num_clusters == 5


def test_a_state_of_other_clusters_of_the_same_sizes_is_refused() -> None:
    """Node numbers 0 and 1 are in different clusters: exchanged, each cluster keeps its size."""
    other = CLUSTERS.clone()
    other[:2] = CLUSTERS[:2].flip(0)
    loaders = [
        khop.Loader(khop.ClusterSampler(chorded(), clusters, layers=2), torch.arange(COUNT), 1)
        for clusters in (CLUSTERS, CLUSTERS.clone(), other)
    ]
    state = loaders[0].state_dict()
    loaders[1].load_state_dict(state)
    with pytest.raises(ValueError, match="seeds"):
        loaders[2].load_state_dict(state)


def test_an_empty_cluster_is_a_group_without_nodes_and_without_loss() -> None:
    clusters = torch.where(CLUSTERS == 3, 5, CLUSTERS)
    sampler = khop.ClusterSampler(chorded(), clusters, layers=2)
    batch = khop.Loader(sampler, torch.arange(COUNT), 1).batch(0, 3)
    assert batch.input_nodes.numel() == batch.seeds.numel() == 0
    assert float(batch.global_mean(torch.empty(0))) == 0
    assert sampler.num_clusters == 6


def test_groups_of_a_step_are_separate_subgraphs_and_only_seeds_have_losses() -> None:
    sampler = khop.ClusterSampler(chorded(), CLUSTERS, layers=2, per_group=2)
    seeds = torch.arange(0, COUNT, 3)
    batch = khop.Loader(sampler, seeds, 3).batch(0, 0)
    for group in range(3):
        nodes = nodes_of(batch.sample, group)
        assert sorted(nodes) == [i for i in range(COUNT) if int(CLUSTERS[i]) // 2 == group]
        assert edges_of(batch.sample, group) == among(nodes)
    assert sorted(batch.seeds.tolist()) == seeds.tolist()
    assert all(block.num_dst == block.num_src == COUNT for block in batch.blocks)


def test_sums_and_degrees_are_those_of_the_rule() -> None:
    sampler = khop.ClusterSampler(chorded(), CLUSTERS, layers=1, rule=khop.SymmetricSum())
    degrees = torch.bincount(torch.tensor(PAIRS)[:, 1], minlength=COUNT).clamp(min=1).double()
    for batch in khop.Loader(sampler, torch.arange(COUNT), 2).epoch(0):
        adjacency = batch.blocks[0].adjacencies[TO]
        source, destination = (batch.input_nodes[end] for end in adjacency.edge_index)
        expected = (degrees[source] * degrees[destination]).rsqrt()
        torch.testing.assert_close(adjacency.weight, expected.float())


def test_several_node_types_have_clusters_of_each() -> None:
    counts, generator = {"user": 9, "item": 6}, torch.Generator().manual_seed(1)
    ends = torch.stack(
        [torch.randint(9, (40,), generator=generator), torch.randint(6, (40,), generator=generator)]
    )
    buys = ("user", "buys", "item")
    graph = khop.graph.store.csc_graph_from_edges(counts, {buys: (ends[0], ends[1])})
    clusters = {"user": torch.arange(9) % 3, "item": torch.arange(6) % 3}
    sampler = khop.ClusterSampler(graph, clusters, layers=1)
    for number, batch in enumerate(khop.Loader(sampler, {"item": torch.arange(6)}, 1).epoch(0)):
        adjacency = batch.blocks[0].adjacencies[buys]
        source, destination = adjacency.edge_index
        users, items = batch.sample.nodes["user"][source], batch.sample.nodes["item"][destination]
        inside = (clusters["user"][ends[0]] == number) & (clusters["item"][ends[1]] == number)
        found = sorted(zip(users.tolist(), items.tolist(), strict=True))
        assert found == sorted(zip(*ends[:, inside].tolist(), strict=True))


def test_bad_clusters_are_named() -> None:
    graph = chorded()
    for clusters, words in (
        (torch.arange(3), r"of shape \(3,\), for 24 nodes"),
        (torch.arange(COUNT) - 1, "node 0 has -1"),
        (torch.rand(COUNT), "give whole numbers"),
        ({}, "none for 'node' nodes"),
    ):
        with pytest.raises(ValueError, match=words):
            khop.ClusterSampler(graph, clusters, layers=1)


KEY = DrawKey(6)


def test_a_walk_follows_in_edges_and_ends_where_there_are_none() -> None:
    draw = khop.SaintWalks(roots=40, length=3)
    nodes = drawn_nodes(chorded(), TO, draw, torch.arange(30), KEY).view(30, 4, 40)
    assert set(nodes[:, 0].flatten().tolist()) == set(range(COUNT))
    for before, after in ((nodes[:, i], nodes[:, i + 1]) for i in range(3)):
        for at, following in zip(before.flatten().tolist(), after.flatten().tolist(), strict=True):
            assert (following, at) in PAIRS or (at == following == 23)


def test_walks_that_meet_draw_apart() -> None:
    nodes = drawn_nodes(chorded(), TO, khop.SaintWalks(200, 1), torch.arange(1), KEY).view(2, 200)
    following = {int(node): set(nodes[1, nodes[0] == node].tolist()) for node in nodes[0].unique()}
    assert sum(len(after) > 1 for after in following.values()) > 10


@pytest.mark.parametrize("draw", [khop.SaintNodes(5), khop.SaintEdges(4), khop.SaintWalks(3, 2)], ids=str)
def test_a_subgraph_depends_on_its_position_and_the_key_only(draw: SaintDraw) -> None:
    graph = chorded()
    together = drawn_nodes(graph, TO, draw, torch.arange(6), KEY)
    assert together.shape[1] == draw.most_nodes
    assert torch.equal(drawn_nodes(graph, TO, draw, torch.tensor([4, 1]), KEY), together[[4, 1]])
    assert not torch.equal(drawn_nodes(graph, TO, draw, torch.arange(6), DrawKey(7)), together)
    assert drawn_nodes(graph, TO, draw, torch.arange(0), KEY).shape == (0, draw.most_nodes)


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
    with pytest.raises(ValueError, match="does not support disjoint groups"):
        khop.ShadowSampler(chorded(), [2], layers=1, rule=khop.Labor())
