"""Keys are numbered as a dictionary numbers them, in torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import khop._core as _core
from khop.kernels.node_index import FirstSeen, NodeIndex, TorchTreeIndex, TreeIndex

DENSE_NODES = 1 << 22  # graphs beyond this get a hash table
SIZES = [1, 50, DENSE_NODES, DENSE_NODES + 1, 2**32, 2**32 + 1, 2**40]
DTYPES = {torch.int32: 2**31, torch.int64: 2**63}


def check(index: NodeIndex, batches: list[list[list[int]]], dtype: torch.dtype) -> None:
    """Every batch, in several inserts, beside a dict."""
    for batch in batches:
        index.clear()
        local_ids: dict[int, int] = {}
        for ids in batch:
            expected = [local_ids.setdefault(node, len(local_ids)) for node in ids]
            local = index.insert(torch.tensor(ids, dtype=dtype))
            assert local.dtype == torch.int32
            assert local.tolist() == expected
        assert len(index) == len(local_ids)
        assert index.nodes(0).tolist() == list(local_ids)
        assert index.nodes(2).tolist() == list(local_ids)[2:]


def batches_of(num_nodes: int, dtype: torch.dtype) -> st.SearchStrategy[list[list[list[int]]]]:
    last = min(num_nodes, DTYPES[dtype]) - 1
    near = st.integers(0, min(last, 20)) | st.integers(max(0, last - 20), last)
    ids = st.lists(near | st.integers(0, last), max_size=30)
    return st.lists(st.lists(ids, max_size=4), max_size=3)


@given(data=st.data())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_nodes", SIZES)
def test_local_ids_are_in_first_seen_order(num_nodes: int, dtype: torch.dtype, data: st.DataObject) -> None:
    check(NodeIndex(num_nodes), data.draw(batches_of(num_nodes, dtype)), dtype)


@given(data=st.data(), left=st.integers(0, 60))
@pytest.mark.parametrize("num_nodes", [50, DENSE_NODES + 1, 2**40])
def test_nothing_is_mistaken_when_stamps_run_out(num_nodes: int, left: int, data: st.DataObject) -> None:
    index = NodeIndex(num_nodes)
    index.core = _core.NodeIndex(num_nodes, base=2**32 - 1 - left)
    check(index, data.draw(batches_of(num_nodes, torch.int64)), torch.int64)


@pytest.mark.parametrize("num_nodes", [2**20, 2**30, 2**40])
def test_large_batches_grow_the_table(num_nodes: int) -> None:
    index = NodeIndex(num_nodes)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        index.clear()
        ids = torch.randint(num_nodes, (60_000,), generator=generator)
        local = index.insert(ids)
        nodes = index.nodes()
        assert torch.equal(nodes[local.long()], ids)
        assert nodes.unique().numel() == nodes.numel() == len(index)
        new = local.long() > torch.cat([torch.tensor([-1]), local.long().cummax(0).values[:-1]])
        assert torch.equal(ids[new], nodes), "first-seen order"


def test_nodes_are_a_copy() -> None:
    index = NodeIndex(10)
    index.insert(torch.tensor([7, 3]))
    nodes = index.nodes()
    index.clear()
    index.insert(torch.tensor([1, 2]))
    assert nodes.tolist() == [7, 3]


def test_strided_ids_are_read_as_they_stand() -> None:
    index = NodeIndex(10)
    assert index.insert(torch.arange(10)[::3]).tolist() == [0, 1, 2, 3]
    assert index.nodes().tolist() == [0, 3, 6, 9]


@pytest.mark.parametrize("num_nodes", [5, DENSE_NODES + 1, 2**40])
@pytest.mark.parametrize("bad", [-1, -(2**31)])
def test_a_negative_id_is_refused_and_nothing_is_inserted(num_nodes: int, bad: int) -> None:
    index = NodeIndex(num_nodes)
    for dtype in DTYPES:
        with pytest.raises(ValueError, match=f"node id {bad} at position 1: not in"):
            index.insert(torch.tensor([3, bad, 4], dtype=dtype))
    assert len(index) == 0


@pytest.mark.parametrize("num_nodes", [5, DENSE_NODES + 1, 2**40])
def test_an_id_behind_the_last_node_is_refused(num_nodes: int) -> None:
    with pytest.raises(ValueError, match=rf"node id {num_nodes} at position 0: not in \[0, {num_nodes}\)"):
        NodeIndex(num_nodes).insert(torch.tensor([num_nodes]))


@pytest.mark.parametrize(
    "ids",
    [torch.tensor([1.0]), torch.tensor([[1]]), torch.zeros(2, dtype=torch.int64, device="meta")],
    ids=str,
)
def test_ids_of_another_kind_are_refused(ids: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"must be int32 or int64 \(n\) on the cpu"):
        NodeIndex(5).insert(ids)


def test_a_negative_number_of_nodes_is_refused() -> None:
    with pytest.raises(ValueError, match="num_nodes -1"):
        NodeIndex(-1)


KEYS = st.lists(st.integers(0, 9) | st.integers(-(2**63), 2**63 - 1), max_size=20)


@given(batches=st.lists(st.lists(KEYS, max_size=3), max_size=3))
def test_numbers_are_in_first_seen_order(batches: list[list[list[int]]]) -> None:
    seen = FirstSeen(torch.device("cpu"))
    for batch in batches:
        seen.clear()
        known: dict[int, int] = {}
        for keys in batch:
            expected = [known.setdefault(key, len(known)) for key in keys]
            found = seen.insert(torch.tensor(keys, dtype=torch.int64))
            assert found.dtype == torch.int32
            assert found.tolist() == expected
        assert len(seen) == len(known)
        assert seen.keys(1).tolist() == list(known)[1:]


@given(hops=st.lists(st.lists(st.lists(st.integers(0, 6), max_size=4), min_size=1, max_size=5), max_size=3))
def test_pairs_of_trees_are_numbered_as_the_core_does(hops: list[list[list[int]]]) -> None:
    """Row i is in tree i."""
    core, other = TreeIndex(7), TorchTreeIndex(7, torch.device("cpu"))
    for index in (core, other):
        index.reset(5)
    for rows in hops:
        ids = torch.tensor([node for row in rows for node in row], dtype=torch.int64)
        offsets = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
        trees = torch.arange(len(rows))
        assert torch.equal(other.insert(ids, offsets, trees), core.insert(ids, offsets, trees))
        assert len(other) == len(core)
        for found, expected in zip(other.pairs(1), core.pairs(1), strict=True):
            assert torch.equal(found, expected)
