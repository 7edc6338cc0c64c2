"""Rows are shared out by owner, and what comes back stands in the order of the rows."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.draw import Frontier, Neighbors
from khop.partition.by_owner import ByOwner, first_outside
from khop.testing.graph_store import rows_of

BOUNDS = [2, 5, 5, 9, 12]  # the second owner has none
IDS = st.lists(st.integers(2, 11), max_size=20) | st.lists(st.integers(2, 11), max_size=20).map(sorted)


def neighbors(ids: list[int]) -> Neighbors:
    """Of each id as many neighbors as it says, all different."""
    nodes = [100 * id_ + number for id_ in ids for number in range(id_ % 4)]
    offsets = torch.tensor([0, *(id_ % 4 for id_ in ids)]).cumsum(0)
    return Neighbors(offsets, torch.tensor(nodes, dtype=torch.int32), -torch.tensor(nodes, dtype=torch.int64))


@given(ids=IDS, bounds=st.sampled_from([BOUNDS, [2, 12], [0, 7, 20]]))
def test_answers_of_owners_are_joined_in_the_order_of_the_questions(
    ids: list[int], bounds: list[int]
) -> None:
    given_ids = torch.tensor(ids, dtype=torch.int64)
    owners = ByOwner.of(given_ids, bounds)
    shares = owners.split(given_ids)
    for share, first, end in zip(shares, bounds[:-1], bounds[1:], strict=True):
        assert share.tolist() == [id_ for id_ in ids if first <= id_ < end]
    assert owners.joined(shares).tolist() == ids
    joined = owners.neighbors([neighbors(share.tolist()) for share in shares])
    assert rows_of(joined) == rows_of(neighbors(ids))
    assert joined.edges is not None
    assert torch.equal(joined.edges, -joined.nodes.long())


def test_limits_and_trees_go_with_their_nodes() -> None:
    frontier = Frontier(torch.tensor([9, 3, 7]), torch.tensor([90, 30, 70]), torch.tensor([1, 2, 3]))
    shares = ByOwner.of(frontier.nodes, [0, 5, 10]).frontiers(frontier)
    assert [share.nodes.tolist() for share in shares] == [[3], [9, 7]]
    assert [share.until.tolist() for share in shares if share.until is not None] == [[30], [90, 70]]
    assert [share.tree.tolist() for share in shares if share.tree is not None] == [[2], [1, 3]]


def test_the_first_id_without_an_owner_is_found() -> None:
    assert first_outside(torch.tensor([2, 11]), BOUNDS) == -1
    assert first_outside(torch.tensor([2, 12, 1]), BOUNDS) == 1
    assert first_outside(torch.tensor([], dtype=torch.int64), BOUNDS) == -1
