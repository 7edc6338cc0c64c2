"""Samplers of groups keep the suite's promises; wrong ones are refused by what is wrong."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import khop
from khop.draw import DrawKey
from khop.graph.store import GraphStore
from khop.sampling.group_samplers import ClusterSampler
from khop.sampling.seeds import GroupSeeds, Seeds, StepShare
from khop.schema import NodeType
from khop.testing.group_sampler import PROMISES, Make
from khop.testing.promises import BrokenPromise


class Clusters(ClusterSampler):
    """Clusters of every seventh node, two in a group: four groups, the last of one cluster."""

    def __init__(self, graph: GraphStore) -> None:
        super().__init__(graph, torch.arange(graph.num_nodes("node")) % 7, layers=2, per_group=2)


MAKERS: dict[str, Make] = {
    "clusters": Clusters,
    "shadow": lambda graph: khop.ShadowSampler(graph, [2, 2], layers=2),
    "shadow, seeds together": lambda graph: khop.ShadowSampler(graph, [2, 2], layers=2, per_group=4),
    "saint": lambda graph: khop.SaintSampler(graph, khop.SaintNodes(12), layers=2, coverage=5),
    "nodes": lambda graph: khop.NeighborSampler(graph, [2, 2]),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps(promise: Callable[[Make], None], make: Make) -> None:
    promise(make)


class LeavesOutATarget(Clusters):
    def groups(self, nodes: Mapping[NodeType, Tensor]) -> GroupSeeds:
        return super().groups({t: ids[1:] for t, ids in nodes.items()})


class OtherEveryTime(Clusters):
    """Groups are other ones in every process."""

    made = itertools.count()

    def groups(self, nodes: Mapping[NodeType, Tensor]) -> GroupSeeds:
        return replace(super().groups(nodes), settings=str(next(self.made)))


class FirstElements(GroupSeeds):
    """Every share is dealt the first elements."""

    def taken(self, share: StepShare) -> Seeds:
        return super().taken(replace(share, order=torch.arange(share.order.numel())))


class SameElements(Clusters):
    def groups(self, nodes: Mapping[NodeType, Tensor]) -> GroupSeeds:
        found = super().groups(nodes)
        return FirstElements(found.kind, found.count, found.size, found.targets, found.settings)


class LosesASeed(Clusters):
    def sample(self, seeds: Seeds, key: DrawKey) -> khop.Sample:
        sample = super().sample(seeds, key)
        return replace(sample, seed_index={t: rows[1:] for t, rows in sample.seed_index.items()})


class AllNodesAreSeeds(Clusters):
    def sample(self, seeds: Seeds, key: DrawKey) -> khop.Sample:
        sample = super().sample(seeds, key)
        return replace(sample, seed_index={t: torch.arange(len(ids)) for t, ids in sample.nodes.items()})


class SeedsTwice(Clusters):
    def sample(self, seeds: Seeds, key: DrawKey) -> khop.Sample:
        sample = super().sample(seeds, key)
        return replace(sample, seed_index={t: rows.repeat(5) for t, rows in sample.seed_index.items()})


class NoGroupCount(Clusters):
    def sample(self, seeds: Seeds, key: DrawKey) -> khop.Sample:
        return replace(super().sample(seeds, key), num_groups=None)


class OwnTotal(Clusters):
    """The total is that of the rank."""

    def sample(self, seeds: Seeds, key: DrawKey) -> khop.Sample:
        sample = super().sample(seeds, key)
        assert sample.loss_weights is not None
        assert seeds.groups is not None
        own = max(seeds.groups.count, 1)
        return replace(sample, loss_weights=khop.LossWeights(sample.loss_weights.by_type, own))


WRONG: dict[type[Clusters], str] = {
    LeavesOutATarget: "targets of groups",
    OtherEveryTime: "groups of the same seeds, digest",
    SameElements: "elements of an epoch",
    LosesASeed: "seeds of an epoch",
    AllNodesAreSeeds: "that are not targets",
    SeedsTwice: "must be once in each",
    NoGroupCount: "num_groups of a sample: None",
    OwnTotal: "total of loss_weights, the groups of all ranks: 1, must be 3",
}


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_a_wrong_sampler_of_groups_is_refused_by_what_is_wrong(kind: type[Clusters]) -> None:
    (promise,) = PROMISES
    with pytest.raises(BrokenPromise, match=re.escape(WRONG[kind])):
        promise(kind)
