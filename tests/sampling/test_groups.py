"""Groups of seeds: dealt to ranks whole, each once per epoch, and the loss of a step is their mean.

Subgraphs of groups: all edges within a group, none between groups, in the order of the graph.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import khop
from khop.draw import DrawKey
from khop.sampling.groups import GroupGraph, Members
from khop.sampling.seeds import GroupSeeds, GroupShare, SeedOrder
from support.group_graphs import COUNT, PAIRS, TO, among, chorded, edges_of

NONE = {"node": torch.arange(0)}


def share_of(order: SeedOrder, epoch: int, step: int) -> GroupShare:
    groups = order.share(epoch, step).groups
    assert groups is not None
    return groups


@given(
    st.integers(1, 40),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 3),
)
def test_each_group_is_used_once_by_one_rank_on_any_number_of_ranks(
    elements: int, size: int, per_step: int, ranks: int, shuffle: bool, epoch: int
) -> None:
    alone = SeedOrder(GroupSeeds("nodes", elements, size, NONE), size * per_step, shuffle, 3, group=size)
    used: list[int] = []
    for step in range(alone.num_steps):
        whole = share_of(alone, epoch, step)
        shares = [share_of(replace(alone, rank=rank, world_size=ranks), epoch, step) for rank in range(ranks)]
        assert torch.equal(torch.cat([share.elements for share in shares]), whole.elements)
        assert sum(share.count for share in shares) == whole.count == whole.total
        assert alone.num_global_seeds(step) == whole.total <= per_step
        assert {share.total for share in shares} == {whole.total}
        positions = torch.cat([share.positions for share in shares])
        assert torch.equal(positions, whole.positions)
        assert whole.positions.tolist() == list(range(step * per_step, step * per_step + whole.count))
        for share in shares:
            assert all(count <= size for count in share.offsets.diff().tolist())
        used += whole.elements.tolist()
    assert sorted(used) == list(range(elements))
    assert alone.num_steps == math.ceil(math.ceil(elements / size) / per_step)


def test_drop_last_keeps_a_last_step_with_as_many_groups_as_others() -> None:
    """The last group may have fewer elements than others; it counts as a group."""
    order = SeedOrder(GroupSeeds("nodes", 10, 3, NONE), 6, drop_last=True, group=3)
    assert [share_of(order, 0, step).count for step in range(order.num_steps)] == [2, 2]
    assert SeedOrder(GroupSeeds("nodes", 4, 3, NONE), 6, drop_last=True, group=3).num_steps == 1
    assert SeedOrder(GroupSeeds("nodes", 9, 3, NONE), 6, drop_last=True, group=3).num_steps == 1
    with pytest.raises(ValueError, match="no batch is complete"):
        SeedOrder(GroupSeeds("nodes", 3, 3, NONE), 6, drop_last=True, group=3)


@pytest.mark.parametrize("per_group", [1, 5])
def test_the_mean_of_the_losses_of_all_steps_is_the_mean_over_all_seeds(per_group: int) -> None:
    graph, seeds = chorded(), torch.arange(0, COUNT, 2)
    each = torch.arange(COUNT, dtype=torch.float64) ** 2
    clusters = torch.arange(COUNT) % 5
    for sampler in (
        khop.ClusterSampler(graph, clusters, layers=2, per_group=per_group),
        khop.ShadowSampler(graph, [2], layers=2, per_group=per_group),
    ):
        loader = khop.Loader(sampler, seeds, 1, shuffle=True)
        losses = [float(batch.global_mean(each[batch.seeds])) for batch in loader]
        assert sum(losses) / len(losses) == pytest.approx(float(each[seeds].mean()), rel=1e-12)


def test_a_rank_without_a_group_has_no_nodes_and_no_loss() -> None:
    sampler = khop.ClusterSampler(chorded(), torch.zeros(COUNT, dtype=torch.int32), layers=2)
    groups = sampler.groups({"node": torch.arange(COUNT)})
    parts = [
        sampler.sample(SeedOrder(groups, 1, rank=rank, world_size=2, group=1).share(0, 0), DrawKey(1))
        for rank in range(2)
    ]
    assert sorted(part.nodes["node"].numel() for part in parts) == [0, COUNT]
    (empty,) = (part for part in parts if not part.nodes["node"].numel())
    assert empty.num_groups == 0
    assert empty.loss_weights is not None
    assert empty.loss_weights.total == 1
    assert float(empty.weighted(torch.empty(0), 1).sum()) == 0


def test_the_state_of_a_loader_resumes_in_the_middle_of_an_epoch_and_knows_its_groups() -> None:
    graph = chorded()

    def loader(per_group: int = 2) -> khop.Loader:
        sampler = khop.ShadowSampler(graph, [2, 2], layers=2, per_group=per_group)
        return khop.Loader(sampler, torch.arange(COUNT), 3, shuffle=True, seed=5)

    whole = [batch.seeds.tolist() for batch in loader().epoch(1)]
    first, again = loader(), loader()
    batches = first.epoch(1)
    for _ in range(2):
        next(batches)
    state = first.state_dict()
    batches.close()
    again.load_state_dict(state)
    assert [batch.seeds.tolist() for batch in again] == whole[2:]
    with pytest.raises(ValueError, match="seed list"):
        loader(3).load_state_dict(state)


def test_seeds_that_are_no_groups_are_refused_with_a_remedy() -> None:
    graph = chorded()
    sampler = khop.ShadowSampler(graph, [2], layers=1)
    with pytest.raises(ValueError, match=r"are not groups, .* give the sampler to khop\.Loader"):
        sampler.sample(khop.Seeds({"node": torch.arange(3)}, {"node": torch.arange(3)}), DrawKey(0))
    with pytest.raises(ValueError, match="groups have no times"):
        khop.Loader(sampler, torch.arange(3), 1, seed_times=torch.arange(3))
    with pytest.raises(ValueError, match="none given"):
        khop.Loader(sampler, torch.arange(0), 1)
    with pytest.raises(ValueError, match="these seeds are links"):
        khop.Loader(sampler, khop.Links({("node", "to", "node"): torch.zeros(2, 3, dtype=torch.int64)}), 1)


GRAPH = chorded()
GROUPS = st.lists(st.lists(st.integers(0, COUNT - 1), unique=True, max_size=COUNT), max_size=5)


def members(groups: list[list[int]]) -> dict[str, Members]:
    offsets = torch.tensor([0, *(len(group) for group in groups)]).cumsum(0)
    return {"node": Members(torch.tensor([i for group in groups for i in group], dtype=torch.int64), offsets)}


@given(GROUPS)
def test_each_group_has_all_its_edges_with_their_ids(groups: list[list[int]]) -> None:
    """A node may be in several groups."""
    sample = GroupGraph(GRAPH, 2, khop.Uniform()).sample(members(groups))
    assert sample.nodes["node"].tolist() == [i for group in groups for i in group]
    for number, group in enumerate(groups):
        assert edges_of(sample, number) == among(group)
    assert len(sample.blocks) == 2
    adjacency = sample.blocks[0].adjacencies[TO]
    assert adjacency.edge_ids is not None
    assert adjacency.weight is None
    csc = GRAPH.csc(TO)
    source, destination = sample.nodes["node"][adjacency.edge_index]
    assert torch.equal(csc.indices[adjacency.edge_ids].long(), source)
    assert torch.equal(csc.destinations()[adjacency.edge_ids], destination)


def test_sums_weigh_one_and_shares_are_those_of_the_graph() -> None:
    whole = members([list(range(0, COUNT, 2)), list(range(COUNT))])
    (adjacency,) = GroupGraph(GRAPH, 1, khop.Sum()).sample(whole).blocks[0].adjacencies.values()
    assert adjacency.weight is not None
    assert set(adjacency.weight.tolist()) == {1.0}
    assert adjacency.weight.numel() == len(PAIRS) + len(among(list(range(0, COUNT, 2))))
