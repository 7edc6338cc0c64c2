"""Partitioning without edges: equal shares of each type, and hashed nodes that keep their part."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.graph.csc_graph import CscGraph
from khop.graph.progress import Meter
from khop.partition.balance import AssignRequest, Balance, Numbering, Partitioner
from khop.partition.plain import HashParts, RandomParts, RangeParts
from khop.schema import Schema


def assigned(
    method: Partitioner, counts: Mapping[str, int], parts: int, ids: torch.Tensor | None = None
) -> dict:
    graph = CscGraph(Schema(tuple(counts), ()), counts, {}, {} if ids is None else {"user": ids})
    numbering = Numbering.of(counts)
    request = AssignRequest(graph, numbering, Balance({}, {}, torch.empty(0)), parts, 1, Meter(0))
    return numbering.by_type(method.assign(request))


@pytest.mark.parametrize("method", [RandomParts(3), RangeParts()], ids=["random", "range"])
@given(users=st.integers(0, 40), items=st.integers(0, 40), parts=st.integers(1, 7))
def test_parts_have_equal_numbers_of_each_type(
    method: Partitioner, users: int, items: int, parts: int
) -> None:
    for count, of_type in zip(
        (users, items), assigned(method, {"user": users, "item": items}, parts).values(), strict=True
    ):
        sizes = torch.bincount(of_type, minlength=parts)
        assert (of_type.dtype, sizes.numel(), int(sizes.sum())) == (torch.int32, parts, count)
        assert int(sizes.max() - sizes.min()) <= 1
        if isinstance(method, RangeParts):
            assert of_type.tolist() == sorted(of_type.tolist())


def test_a_hashed_node_keeps_its_part_in_another_graph() -> None:
    ids = torch.tensor([70, 3, 1 << 40, 12, 5])
    order = torch.tensor([4, 2, 0])
    before = assigned(HashParts(9), {"user": 5}, 3, ids)["user"]
    after = assigned(HashParts(9), {"user": 3}, 3, ids[order])["user"]
    assert torch.equal(after, before[order])


def test_hashes_spread_nodes_evenly_and_differ_by_seed() -> None:
    first, second = (assigned(HashParts(seed), {"user": 6000}, 3)["user"] for seed in (1, 2))
    assert all(abs(int(size) - 2000) < 200 for size in torch.bincount(first))
    assert not torch.equal(first, second)
