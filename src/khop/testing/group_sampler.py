"""Contract suite for samplers that divide the seeds of an epoch into groups, such as `khop.ShadowSampler`.

A test takes a function that makes the tested sampler from a graph store. A sampler without groups must raise
`khop.errors.Unsupported`.

Example:
    >>> from khop.testing import group_sampler
    >>> for promise in group_sampler.PROMISES:
    ...     promise(lambda graph: khop.ShadowSampler(graph, fanouts=[3, 2], layers=2))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from khop.draw import DrawKey
from khop.errors import Unsupported
from khop.graph.store import GraphStore
from khop.sampling.groups import group_share
from khop.sampling.sampler import Sampler
from khop.sampling.seeds import GroupSeeds, Seeds, StepShare
from khop.schema import NodeType
from khop.testing.graphs import int64, ring
from khop.testing.promises import expect, expect_equal, promise

KEY = DrawKey(11)
Make = Callable[[GraphStore], Sampler]
Counts = Counter[tuple[NodeType, int]]  # how often a node is a seed
STEP = 3  # groups per step


@promise
def groups_are_dealt_once_per_epoch(make: Make) -> None:
    """Return each element and each group once per epoch from `groups`, or raise Unsupported."""
    graph = ring(40, 3).in_memory()
    sampler, nodes = make(graph), {"node": int64([31, 4, 17, 5, 28, 9])}
    if "groups" not in sampler.seed_kinds:
        _expect_unsupported(sampler, nodes)
        return
    found = sampler.groups(nodes)
    expect_equal("groups of the same seeds, digest", make(graph).groups(nodes).digest(), found.digest())
    targets = {(t, node) for t, of_type in found.targets.items() for node in of_type.tolist()}
    expect_equal("targets of groups", targets, {("node", node) for node in nodes["node"].tolist()})
    elements: list[int] = []
    positions: list[int] = []
    for share in _shares(found):
        own = group_share(found.taken(share))
        elements.extend(own.elements.tolist())
        positions.extend(own.positions.tolist())
    expect_equal("elements of an epoch", sorted(elements), list(range(found.count)))
    expect_equal("groups of an epoch", positions, list(range(found.num_groups)))
    one, other = (_seeds_of_epoch(sampler, found, key) for key in (KEY, KEY.plus(1)))
    if one == other:  # groups do not depend on the key, for example clusters
        expect_equal("seeds of an epoch", dict(one), dict.fromkeys(targets, 1))


def _expect_unsupported(sampler: Sampler, nodes: Mapping[NodeType, Tensor]) -> None:
    """Expect the error of a sampler that takes no groups."""
    try:
        sampler.groups(nodes)
    except Unsupported as error:
        expect(bool(str(error)), "Unsupported was raised without a message with the remedy")
        return
    kinds = sorted(sampler.seed_kinds)
    raise AssertionError(f"groups of a sampler of {kinds}: no error was raised, must be Unsupported")


def _shares(found: GroupSeeds) -> Iterator[StepShare]:
    """Yield the shares of two ranks in each step; the first rank has no group in a step of one group."""
    order = torch.arange(found.count).flip(0)
    for start in range(0, found.count, STEP * found.size):
        of_step = order[start : start + STEP * found.size]
        groups = torch.arange(of_step.numel()) // found.size
        first = int(groups[-1] + 1) // 2
        for is_mine in (groups < first, groups >= first):
            yield StepShare(of_step, start, is_mine.nonzero().view(-1), KEY)


def _seeds_of_epoch(sampler: Sampler, found: GroupSeeds, key: DrawKey) -> Counts:
    """Return how often each node is a seed in an epoch, after a check of every sample."""
    seeds: Counts = Counter()
    for share in _shares(found):
        seeds += _checked_seeds(sampler, found.taken(share), key)
    return seeds


def _checked_seeds(sampler: Sampler, seeds: Seeds, key: DrawKey) -> Counts:
    """Return how often each node is a seed in a sample of groups: only targets, once per group."""
    sample, share = sampler.sample(seeds, key), group_share(seeds)
    expect_equal("num_groups of a sample", sample.num_groups, share.count)
    total = None if sample.loss_weights is None else sample.loss_weights.total
    expect_equal("total of loss_weights, the groups of all ranks", total, share.total)
    found: Counts = Counter()
    for node_type, rows in sample.seed_index.items():
        ids = sample.nodes[node_type][rows].tolist()
        strange = sorted(set(ids) - set(share.targets.get(node_type, rows[:0]).tolist()))
        expect_equal(f"seeds of {node_type!r} that are not targets", strange, [])
        found.update((node_type, node) for node in ids)
    most = max(found.values(), default=0)
    expect(
        most <= share.count, f"a node is a seed {most} times in {share.count} groups, must be once in each"
    )
    return found


PROMISES: tuple[Callable[[Make], None], ...] = (groups_are_dealt_once_per_epoch,)
