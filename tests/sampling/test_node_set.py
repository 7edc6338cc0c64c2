"""Node sets number nodes type by type, and go round among their users."""

from __future__ import annotations

import pytest
import torch

from khop.sampling.node_set import NodeSet, NodeSetPool, check_ids
from support.random_graphs import ring


def test_every_type_has_its_own_numbers() -> None:
    nodes = NodeSet({"user": 10, "item": 10})
    assert nodes.insert("user", torch.tensor([7, 3, 7])).tolist() == [0, 1, 0]
    assert nodes.insert("item", torch.tensor([3, 9])).tolist() == [0, 1]
    assert nodes.insert("user", torch.tensor([9, 3], dtype=torch.int32)).tolist() == [2, 1]
    assert nodes.counts() == {"user": 3, "item": 2}
    assert {t: ids.tolist() for t, ids in nodes.nodes().items()} == {"user": [7, 3, 9], "item": [3, 9]}
    frontier = nodes.frontier(start={"user": 1, "item": 0})
    assert {t: of_type.nodes.tolist() for t, of_type in frontier.items()} == {"user": [3, 9], "item": [3, 9]}


def test_a_set_comes_back_empty_also_after_a_failure() -> None:
    pool = NodeSetPool(ring(10, 2), NodeSet)
    with pool.lend() as first:
        first.insert("node", torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="10"), pool.lend() as again:
        again.insert("node", torch.tensor([5, 10]))
    with pool.lend() as last:
        assert last is again is first
        assert last.counts() == {"node": 0}


def test_two_users_at_once_have_two_sets() -> None:
    pool = NodeSetPool(ring(10, 2), NodeSet)
    with pool.lend() as one, pool.lend() as other:
        assert one is not other


def test_ids_are_checked_with_the_name_of_what_they_are() -> None:
    check_ids("nodes", torch.tensor([0, 9]), 10)
    check_ids("nodes", torch.empty(0, dtype=torch.int64), 0)
    with pytest.raises(ValueError, match="nodes: there is no node 10; ids go from 0 to 9"):
        check_ids("nodes", torch.tensor([0, 10]), 10)
