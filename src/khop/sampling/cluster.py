"""Cluster-GCN: subgraphs induced by clusters of nodes (Chiang et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor

from khop.arguments import as_mapping, graph_of, shown, whole_number
from khop.batch import Sample
from khop.draw import DrawKey
from khop.graph.needs import Need
from khop.graph.store import GraphStore
from khop.rules.rule import Rule
from khop.rules.uniform import Uniform
from khop.sampling.group_subgraph import GroupGraph, Members
from khop.sampling.groups import GroupSeeds, equal_weights, group_share, with_targets
from khop.sampling.sampler import GROUPS, GroupShare, SamplerBase, SeedKind, Seeds
from khop.sampling.seeds import array_bytes, digest_of
from khop.schema import EdgeType, NodeType, sole_type


class ClusterSampler(SamplerBase):
    """Cluster-GCN's sampler: a group is `per_group` clusters and all edges among their nodes.

    `clusters` has the cluster of each node, whole numbers from 0 on: (nodes), by node type if there are
    several. `khop.clusters_of` reads the column that `khop.cluster_graph` writes. A shuffled epoch puts
    other clusters together each time, and uses each cluster once. A cluster without nodes, or without seeds,
    adds nothing to the loss.

    The seeds of a loader are the nodes with a loss; the mean over all groups of an epoch is the mean over all
    of them. A step takes `batch_size` groups; its loss is the mean of theirs. `layers` is the number of
    blocks: each is the whole subgraph. Chiang et al., arXiv 1905.07953.
    """

    def __init__(
        self,
        graph: GraphStore,
        clusters: Tensor | Mapping[NodeType, Tensor],
        *,
        layers: int,
        per_group: int = 1,
        rule: Rule = Uniform(),
    ) -> None:
        super().__init__(graph)
        self.rule = rule
        self._per_group = whole_number("per_group", per_group, 1)
        self._subgraphs = GroupGraph(graph, layers, rule)
        types = graph.schema.node_types
        by_type = as_mapping(clusters, lambda one: {sole_type(types, "clusters without a node type"): one})
        numbers = {t: _checked(graph, t, by_type.get(t)) for t in types}
        self._count = 1 + max(int(of_type.max()) if of_type.numel() else -1 for of_type in numbers.values())
        self._nodes = {t: self._by_cluster(t, of_type) for t, of_type in numbers.items()}

    @property
    def num_clusters(self) -> int:
        """The largest number of a cluster, plus 1."""
        return self._count

    @property
    def num_layers(self) -> int:
        """Number of blocks in a sample."""
        return self._subgraphs.layers

    @property
    def seed_kinds(self) -> frozenset[SeedKind]:
        """Groups: each is some clusters."""
        return GROUPS

    def needs(self, seed_types: Collection[NodeType | EdgeType]) -> tuple[Need, ...]:
        """Return the arrays of the rule."""
        return self._subgraphs.needs

    def groups(self, nodes: Mapping[NodeType, Tensor]) -> GroupSeeds:
        """Return the clusters of an epoch."""
        targets = {t: ids.unique() for t, ids in nodes.items()}
        if not any(ids.numel() for ids in targets.values()):
            raise ValueError(f"seeds: none given for types {list(targets)}; an epoch needs one or more")
        return GroupSeeds("clusters", self._count, self._per_group, targets, self._digest())

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        """Return the subgraphs of a rank's groups, one after another, with the seed nodes in them."""
        share = group_share(seeds)
        members = {node_type: self._members(node_type, share) for node_type in self._nodes}
        return with_targets(self._subgraphs.sample(members), share, members, equal_weights)

    def _members(self, node_type: NodeType, share: GroupShare) -> Members:
        of_cluster = self._nodes[node_type]
        begins, sizes = of_cluster.offsets[share.elements], of_cluster.offsets.diff()[share.elements]
        ends = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        places = torch.arange(int(ends[-1])) + torch.repeat_interleave(begins - ends[:-1], sizes)
        return Members(of_cluster.nodes[places], ends[share.offsets])

    def _by_cluster(self, node_type: NodeType, numbers: Tensor) -> Members:
        """Return the nodes of each cluster, by original id."""
        originals = self.graph.original_ids(node_type)
        order = torch.arange(numbers.numel()) if originals is None else originals.argsort()
        nodes = order[numbers[order].argsort(stable=True)]
        sizes = torch.bincount(numbers, minlength=self._count)
        return Members(nodes, torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))

    def _digest(self) -> str:
        def hash_into(update: Callable[[bytes | memoryview], None]) -> None:
            for of_type in self._nodes.values():
                update(array_bytes(of_type.offsets))

        return digest_of(hash_into)


def _checked(graph: GraphStore, node_type: NodeType, given: object) -> Tensor:
    graph_of("graph", graph)
    count, remedy = graph.num_nodes(node_type), "give whole numbers from 0 on, one per node"
    if given is None:
        raise ValueError(f"clusters: none for {node_type!r} nodes; {remedy}, of each node type")
    if not isinstance(given, Tensor) or given.is_floating_point() or given.dtype == torch.bool:
        raise ValueError(f"clusters of {node_type!r}: {shown(given)}; {remedy}")
    if given.shape != (count,):
        shape = tuple(given.shape)
        raise ValueError(f"clusters of {node_type!r}: of shape {shape}, for {count:,} nodes; {remedy}")
    numbers = given.long()
    if count and int(numbers.min()) < 0:
        node = int(numbers.argmin())
        raise ValueError(f"clusters of {node_type!r}: node {node} has {int(numbers[node])}; {remedy}")
    return numbers
