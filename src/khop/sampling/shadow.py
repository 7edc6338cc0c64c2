"""ShaDow: subgraphs induced by the neighborhoods of seeds (Zeng et al. 2021)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from khop.arguments import whole_number
from khop.batch import Sample
from khop.draw import DrawKey, FrontierByType, NeighborsByType
from khop.graph.needs import Need
from khop.graph.store import GraphStore
from khop.rules.rule import FrontierField, Hop, Rule
from khop.rules.uniform import Uniform
from khop.sampling.fanouts import Fanout, fanouts_by_type
from khop.sampling.group_subgraph import GroupGraph, Members
from khop.sampling.groups import GroupSeeds, equal_weights, group_share, with_seeds
from khop.sampling.neighbor import Expansion, expand
from khop.sampling.node_set import NodeSetPool
from khop.sampling.sampler import GROUPS, GroupShare, SamplerBase, SeedKind, Seeds
from khop.sampling.tree_set import TreeSet
from khop.schema import EdgeType, NodeType


class ShadowSampler(SamplerBase):
    """ShaDow's sampler: neighbors of a group of seeds, drawn by `fanouts`, and all edges among these nodes.

    A group is `per_group` seeds. With one, each seed has a subgraph of its own, as in torch_geometric; with
    more, these seeds share one subgraph, as in DGL. A step takes `batch_size` groups; its loss is the mean of
    theirs. `layers` is the number of blocks, each the whole subgraph; it may differ from the number of hops.

    Neighbors are drawn by `rule`. Edges have its weights if all its neighbors have weights, as with `Sum`;
    others are averaged. `sample.trees` has the group of each node. Zeng et al., arXiv 2201.07858.
    """

    def __init__(
        self,
        graph: GraphStore,
        fanouts: Sequence[Fanout],
        *,
        layers: int,
        per_group: int = 1,
        rule: Rule = Uniform(),
    ) -> None:
        super().__init__(graph)
        self._subgraphs = GroupGraph(graph, layers, rule)
        if FrontierField.TREE not in rule.frontier_fields:
            raise ValueError(f"rule {rule}: does not draw for disjoint groups; give khop.Uniform(), for one")
        self.rule = rule
        self.fanouts = tuple(fanouts_by_type(graph.schema, fanouts))
        self._hops = tuple(Hop(n, of_hop, rule, edge_ids=False) for n, of_hop in enumerate(self.fanouts, 1))
        self._per_group = whole_number("per_group", per_group, 1)
        self._node_sets = NodeSetPool(graph, TreeSet)

    @property
    def num_layers(self) -> int:
        """Number of blocks in a sample."""
        return self._subgraphs.layers

    @property
    def seed_kinds(self) -> frozenset[SeedKind]:
        """Groups: each is some seed nodes."""
        return GROUPS

    def needs(self, seed_types: Collection[NodeType | EdgeType]) -> tuple[Need, ...]:
        """Return the arrays of the rule."""
        return self._subgraphs.needs

    def groups(self, nodes: Mapping[NodeType, Tensor]) -> GroupSeeds:
        """Return the seed nodes of an epoch, duplicates included."""
        count = sum(ids.numel() for ids in nodes.values())
        if not count:
            raise ValueError(f"seeds: none given for types {list(nodes)}; an epoch needs one or more")
        return GroupSeeds("nodes", count, self._per_group, nodes)

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        """Return the subgraphs of a rank's groups, one after another."""
        share = group_share(seeds)

        def draw(hop: int, frontier: FrontierByType) -> NeighborsByType:
            return self.graph.sample_hop(frontier, self._hops[hop - 1], key)

        with self._node_sets.lend() as node_set:
            reached = expand(_planted(share), draw, len(self._hops), Expansion.SUBGRAPH, node_set)
        assert reached.trees is not None
        members, index = {}, {}
        for node_type, nodes in reached.nodes.items():
            trees = reached.trees[node_type]
            order = trees.argsort(stable=True)
            sizes = torch.bincount(trees, minlength=share.count)
            ends = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
            members[node_type] = Members(nodes[order], ends)
            if node_type in reached.seed_index:
                rows = torch.empty_like(order)
                rows[order] = torch.arange(order.numel())
                index[node_type] = rows[reached.seed_index[node_type]]
        sample = self._subgraphs.sample(members)
        return with_seeds(sample, share, index, equal_weights)


def _planted(share: GroupShare) -> Seeds:
    """Return the seed nodes of the groups, with the position of the group of each."""
    groups = share.first + torch.repeat_interleave(share.offsets.diff())
    nodes, positions, start = {}, {}, 0
    for node_type, ids in share.targets.items():
        of_type = (share.elements >= start) & (share.elements < start + ids.numel())
        nodes[node_type] = ids[share.elements[of_type] - start]
        positions[node_type] = groups[of_type]
        start += ids.numel()
    return Seeds(nodes, positions, groups=share)
