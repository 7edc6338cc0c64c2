"""Wrong samplers are refused by what is wrong."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from khop import (
    DrawKey,
    Expansion,
    LinkSampler,
    LossWeights,
    NeighborSampler,
    Output,
    Sample,
    SamplerBase,
    Seeds,
    Uniform,
)
from khop.graph.needs import Need
from khop.graph.store import GraphStore
from khop.sampling.sampler import KernelSampler
from khop.sampling.seeds import GroupSeeds
from khop.schema import EdgeType, NodeType
from khop.testing import group_sampler
from khop.testing import sampler as suite
from khop.testing.promises import BrokenPromise, keep_all
from khop.testing.sampler import PROMISES, RANDOM_PROMISES, Make


class Smallest(SamplerBase):
    """A sampler of one's own with no more than it must have."""

    def __init__(self, graph: GraphStore) -> None:
        super().__init__(graph)
        self.inner = NeighborSampler(graph, [3, 2], edge_ids=True)

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        return self.inner.sample(seeds, key)


@pytest.mark.long
def test_a_sampler_with_one_member_keeps_the_suite() -> None:
    keep_all([*PROMISES, *RANDOM_PROMISES], Smallest)


SUBGRAPH = Expansion.SUBGRAPH
BUILT_IN: dict[str, Make] = {
    "with replacement": lambda graph: NeighborSampler(graph, [3, 2], rule=Uniform(True), edge_ids=True),
    "disjoint": lambda graph: NeighborSampler(graph, [3, 2], trees="disjoint", edge_ids=True),
    "induced": lambda graph: NeighborSampler(graph, [3, 2], expansion=SUBGRAPH, output=Output.INDUCED),
    "bidirectional": lambda graph: NeighborSampler(
        graph, [3, 2], expansion=SUBGRAPH, output=Output.BIDIRECTIONAL
    ),
    "links": lambda graph: LinkSampler(graph, [3, 2], trees="disjoint"),
}  # others: beside their modules


@pytest.mark.parametrize("make", BUILT_IN.values(), ids=list(BUILT_IN))
@pytest.mark.parametrize("promise", [*PROMISES, *RANDOM_PROMISES], ids=lambda promise: promise.__name__)
def test_it_keeps(promise: Callable[[Make], None], make: Make) -> None:
    promise(make)


class Counts(Smallest):
    """Every sample has another key."""

    def __init__(self, graph: GraphStore) -> None:
        super().__init__(graph)
        self.calls = itertools.count()

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        return self.inner.sample(seeds, key.plus(next(self.calls)))


class NoKey(Smallest):
    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        return self.inner.sample(seeds, DrawKey(0))


class FirstRowForAll(Smallest):
    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        sample = self.inner.sample(seeds, key)
        return replace(sample, seed_index={t: at * 0 for t, at in sample.seed_index.items()})


class TooManyBlocks(Smallest):
    @property
    def num_layers(self) -> int:
        return 3


class BlocksTurned(Smallest):
    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        sample = self.inner.sample(seeds, key)
        return replace(sample, blocks=sample.blocks[::-1])


class OtherSources(Smallest):
    """Sources are numbered from the end."""

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        sample = self.inner.sample(seeds, key)
        blocks = [
            replace(
                block,
                adjacencies={
                    t: replace(a, indices=(a.num_src - 1 - a.indices).int(), edge_ids=None)
                    for t, a in block.adjacencies.items()
                },
            )
            for block in sample.blocks
        ]
        return replace(sample, blocks=tuple(blocks))


class WrongEdgeIds(Smallest):
    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        sample = self.inner.sample(seeds, key)
        blocks = [
            replace(b, adjacencies={t: replace(a, edge_ids=a.edge_ids * 0) for t, a in b.adjacencies.items()})
            for b in sample.blocks
        ]
        return replace(sample, blocks=tuple(blocks))


class DoubleWeights(Smallest):
    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        sample = self.inner.sample(seeds, key)
        blocks = [
            replace(
                b,
                adjacencies={t: replace(a, weight=a.indices.double()) for t, a in b.adjacencies.items()},
            )
            for b in sample.blocks
        ]
        return replace(sample, blocks=tuple(blocks))


class TakesAnySeed(Smallest):
    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        nodes = {t: ids.flatten().long() % 10 for t, ids in seeds.nodes.items() if t != "user"}
        return self.inner.sample(Seeds(nodes, {}), key)


class OtherGraph(Smallest):
    def __init__(self, graph: GraphStore) -> None:
        super().__init__(graph)
        self.graph = graph.only(list(graph.schema.edge_types))


class NoKinds(Smallest):
    @property
    def seed_kinds(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"graphs"})


class NewNeeds(Smallest):
    asked = 0

    def needs(self, seed_types: Collection[NodeType | EdgeType]) -> tuple[Need, ...]:
        self.asked += 1
        return () if self.asked < 3 else ("more",)  # type: ignore[return-value]


class OnlySeedsVisited(Smallest):
    def visits(self, seeds: Mapping[NodeType, Tensor], share: int) -> Mapping[NodeType, Tensor]:
        counts = {t: self.graph.num_nodes(t) for t in self.graph.schema.node_types}
        visits = {t: torch.zeros(count, dtype=torch.float64) for t, count in counts.items()}
        for node_type, ids in seeds.items():
            visits[node_type][ids] = 1.0
        return visits


class ThreadsDraw(Smallest):
    def with_threads(self, threads: int) -> NoKey:  # type: ignore[override]
        return NoKey(self.graph)


class ManyFanouts(Smallest):
    @property
    def num_layers(self) -> int:
        return 2

    @property
    def exact_fanouts(self) -> list[int]:
        return [-1]


class OwnTotal(Smallest):
    """The total counts the rank's own seeds alone."""

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        weights = {t: 1.0 + ids % 3 for t, ids in seeds.nodes.items()}
        total = sum(float(of_type.sum()) for of_type in weights.values()) + 1
        return replace(self.inner.sample(seeds, key), loss_weights=LossWeights(weights, total))


class ByPlace(Smallest):
    """The weight of a seed is its place in the rank's share."""

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        weights = {t: torch.arange(1.0, ids.numel() + 1) for t, ids in seeds.nodes.items()}
        return replace(self.inner.sample(seeds, key), loss_weights=LossWeights(weights, 15.0))


class OneAtATime(Smallest):
    """A sample beside another one has another key."""

    inside = 0
    lock = threading.Lock()

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        with self.lock:
            self.inside += 1
            others = self.inside - 1
        time.sleep(0.001)
        sample = self.inner.sample(seeds, key.plus(others))
        with self.lock:
            self.inside -= 1
        return sample


class Remembers(Smallest):
    """After a sample that failed, the next one has another key."""

    failed = 0

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        try:
            return self.inner.sample(seeds, key.plus(self.failed))
        except OSError:
            self.failed += 1
            raise


class NeedsSeeds(Smallest):
    """Types without seeds are left out."""

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        sample = self.inner.sample(seeds, key)
        some = {t: at if at.numel() else at.new_zeros(1) for t, at in sample.seed_index.items()}
        return replace(sample, seed_index=some)


class LargeSplit(Smallest):
    """Threads that share a large frontier draw by keys of their own."""

    threads = 1

    def with_threads(self, threads: int) -> LargeSplit:
        split = LargeSplit(self.graph)
        split.threads = threads
        return split

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        return self.inner.sample(seeds, key.plus(self.threads > 1 and seeds.count >= 600))


class UnknownType(Smallest):
    """Edges come under a type that the graph does not have."""

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        sample = self.inner.sample(seeds, key)
        blocks = [
            replace(b, adjacencies={(t[0], "other", t[2]): a for t, a in b.adjacencies.items()})
            for b in sample.blocks
        ]
        return replace(sample, blocks=tuple(blocks))


class UnlikelySeeds(Smallest):
    """Seeds are hardly ever in a batch."""

    def visits(self, seeds: Mapping[NodeType, Tensor], share: int) -> Mapping[NodeType, Tensor]:
        counts = {t: self.graph.num_nodes(t) for t in self.graph.schema.node_types}
        return {t: torch.full((count,), 0.01, dtype=torch.float64) for t, count in counts.items()}


class EvaluatesAll(Smallest):
    """An evaluation takes all neighbors, whatever its fanouts."""

    def for_evaluation(
        self, graph: GraphStore, fanouts: Sequence[object], *, edge_ids: bool
    ) -> NeighborSampler:
        return NeighborSampler(graph, [-1, -1], edge_ids=edge_ids)


class OtherKernels(Smallest):
    """Kernels would take other fanouts."""

    def for_kernels(self) -> KernelSampler:
        return NeighborSampler(self.graph, [2, 2], edge_ids=True).for_kernels()


class MakesGroups(Smallest):
    """It makes groups, and takes single nodes."""

    def groups(self, nodes: Mapping[NodeType, Tensor]) -> GroupSeeds:
        return GroupSeeds("nodes", sum(ids.numel() for ids in nodes.values()), 1, nodes)


WRONG: dict[type[Smallest], tuple[Callable[[Make], None], str]] = {
    Counts: (suite.samples_are_functions_of_seeds_and_key, "the second sample"),
    NoKey: (suite.draws_depend_on_the_key, "another key gives the same sample"),
    FirstRowForAll: (suite.every_seed_has_its_row, "Return a row for the node of each seed"),
    TooManyBlocks: (suite.blocks_lead_from_all_nodes_to_the_seeds, "number of blocks: 2, must be 3"),
    BlocksTurned: (suite.blocks_lead_from_all_nodes_to_the_seeds, "Return consecutive blocks"),
    OtherSources: (suite.edges_are_edges_of_the_graph, "that the graph does not have"),
    WrongEdgeIds: (suite.edges_are_edges_of_the_graph, "by edge id"),
    DoubleWeights: (suite.blocks_lead_from_all_nodes_to_the_seeds, "dtype of weight"),
    TakesAnySeed: (suite.wrong_seeds_are_named, "no error was raised, must be a ValueError"),
    OtherGraph: (suite.it_states_what_it_takes, "must be the store that it was made with"),
    NoKinds: (suite.it_states_what_it_takes, "seed_kinds are {'graphs'}"),
    NewNeeds: (suite.it_states_what_it_takes, "needs, asked twice"),
    OnlySeedsVisited: (suite.visits_are_probabilities_of_nodes, "in a sample with visits of 0"),
    ThreadsDraw: (suite.numbers_of_threads_change_no_sample, "the sample of with_threads(1)"),
    OwnTotal: (suite.loss_weights_do_not_depend_on_the_rank, "totals of three ranks"),
    ByPlace: (suite.loss_weights_do_not_depend_on_the_rank, "loss weights of three ranks"),
    OneAtATime: (suite.threads_share_it, "four threads get other samples than one"),
    LargeSplit: (suite.numbers_of_threads_change_no_sample, "the sample of with_threads(3)"),
    Remembers: (suite.a_failed_sample_changes_no_later_one, "the sample after a failed one"),
    NeedsSeeds: (suite.no_seeds_give_a_sample, "seed_index: [0], must be []"),
    UnknownType: (suite.edges_are_edges_of_the_graph, "which the graph does not have"),
    UnlikelySeeds: (suite.visits_are_probabilities_of_nodes, "must be 0.5 or more"),
    EvaluatesAll: (suite.evaluation_uses_a_sampler_or_the_default, "must be 9 or fewer"),
    OtherKernels: (suite.evaluation_uses_a_sampler_or_the_default, "the sample of for_kernels()"),
    ManyFanouts: (suite.evaluation_uses_a_sampler_or_the_default, "number of exact_fanouts"),
    MakesGroups: (group_sampler.groups_are_dealt_once_per_epoch, "no error was raised, must be Unsupported"),
}


@pytest.mark.core(6)
@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_a_wrong_sampler_is_refused_by_what_is_wrong(kind: type[Smallest], few_examples: None) -> None:
    promise, sentence = WRONG[kind]
    assert promise in (*PROMISES, *RANDOM_PROMISES)
    with pytest.raises(BrokenPromise, match=re.escape(sentence)):
        promise(kind)


def test_each_promise_has_a_wrong_sampler() -> None:
    assert {promise for promise, _ in WRONG.values()} == {*PROMISES, *RANDOM_PROMISES}
