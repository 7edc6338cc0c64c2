"""Cluster-GCN: the nodes of clusters and all edges among them, as torch_geometric makes them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import ClusterData, ClusterLoader

import khop
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
    graph = khop.graph.csc_graph.csc_graph_from_edges(counts, {buys: (ends[0], ends[1])})
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
