"""Subgraphs of groups: all edges within a group, none between groups, in the order of the graph."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

import khop
from khop.sampling.group_subgraph import GroupGraph, Members
from support.group_graphs import COUNT, PAIRS, TO, among, chorded, edges_of

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
