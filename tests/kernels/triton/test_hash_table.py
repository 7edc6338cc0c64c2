"""Pairs of a tree and a node get the local ids that the CPU's index of trees gives them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.triton.test_node_table import NOT_WRITTEN, number, numbering, unwritten
from khop.kernels.node_index import TreeIndex
from khop.kernels.triton.hash_table import (
    PairTable,
    TreeLevel,
    TreeRows,
    Trees,
    assign_pairs,
    check_pairs,
    claim,
    free_keys,
    num_places,
)
from khop.kernels.triton.node_index import DeviceNodeIndex
from khop.kernels.triton.node_table import STAMP_LIMIT, Level, count_firsts, look_up, num_blocks
from support.examples import few
from support.host_reads import counting
from support.triton_rows import DEVICE

NUM_TREES = 6
TREES = Trees(torch.arange(NUM_TREES, device=DEVICE) * 10, torch.arange(NUM_TREES, device=DEVICE) - 100)


def rows(count: int) -> TreeRows:
    return TreeRows(unwritten(count), unwritten(count), unwritten(count))


def table_of(num_nodes: int, capacity: int, places: int | None = None, stamp: int = 1) -> PairTable:
    places = num_places(capacity) if places is None else places
    return PairTable(free_keys(places, DEVICE), num_nodes, numbering(places, capacity, stamp))


def insert(pairs: PairTable, ids: Tensor, trees: Tensor, level: TreeLevel) -> Tensor:
    """One hop; the local ids."""
    places, out = unwritten(ids.numel()), unwritten(ids.numel(), torch.int32)
    firsts = unwritten(num_blocks(ids.numel()), torch.int32)
    claim(pairs, ids, trees, places)
    count_firsts(pairs.numbering, places, firsts)
    assign_pairs(pairs, places, firsts, level)
    look_up(pairs.numbering, places, out)
    return out


HOPS = st.lists(
    st.lists(
        st.tuples(st.integers(0, NUM_TREES - 1), st.lists(st.integers(-1, 9), min_size=3, max_size=3)),
        min_size=1,
        max_size=12,
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=few(4))
@given(batches=st.lists(HOPS, min_size=1, max_size=2), num_nodes=st.sampled_from([10, 1 << 40]))
def test_hops_of_batches_are_numbered_as_the_cpu_does(
    batches: list[list[list[tuple[int, list[int]]]]], num_nodes: int
) -> None:
    pairs, index, capacity = table_of(num_nodes, 60), TreeIndex(num_nodes), 60
    for stamp, hops in enumerate(batches, start=1):
        pairs.numbering.stamp.fill_(stamp)
        pairs.clear()
        index.reset(NUM_TREES)
        nodes, of_nodes, known = unwritten(capacity), rows(capacity), number()
        for hop in hops:
            trees, ids = (torch.tensor(column) for column in zip(*hop, strict=True))
            count, fresh, fresh_count = number(NOT_WRITTEN), unwritten(capacity), number(NOT_WRITTEN)
            level = Level(nodes, known, count, capacity, fresh, fresh_count)
            fresh_rows = rows(capacity)
            local = insert(
                pairs,
                ids.flatten().to(DEVICE),
                trees.to(DEVICE),
                TreeLevel(level, of_nodes, fresh_rows, TREES),
            )
            there = ids >= 0
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), there.sum(1).cumsum(0)])
            before = len(index)
            want = index.insert(ids[there], offsets, trees)
            assert torch.equal(local.cpu()[there.flatten()], want)
            assert (local.cpu()[~there.flatten()] == -1).all()
            assert count.item() == len(index)
            assert fresh_count.item() == len(index) - before
            for start, got, of_got in ((0, nodes, of_nodes), (before, fresh, fresh_rows)):
                want_nodes, want_trees = index.pairs(start)
                size = want_nodes.numel()
                assert torch.equal(got[:size].cpu(), want_nodes)
                assert torch.equal(of_got.trees[:size].cpu(), want_trees)
                assert torch.equal(of_got.positions[:size].cpu(), want_trees * 10)
                assert of_got.until is not None
                assert torch.equal(of_got.until[:size].cpu(), want_trees - 100)
            known = count
    assert pairs.numbering.overflow.item() == 0


@pytest.mark.core(1)
@pytest.mark.parametrize(("capacity", "places"), [(5, None), (250, 64)], ids=["capacity", "places"])
def test_too_many_pairs_are_reported(capacity: int, places: int | None) -> None:
    pairs = table_of(5000, capacity, places, stamp=4)
    nodes = torch.full((capacity + 3,), NOT_WRITTEN, device=DEVICE)
    level = Level(nodes, number(), number(), capacity)
    ids, trees = torch.arange(300, device=DEVICE), torch.zeros(300, dtype=torch.int64, device=DEVICE)
    local = insert(pairs, ids, trees, TreeLevel(level, rows(capacity + 3), None, TREES))
    assert pairs.numbering.overflow.item() == 4
    assert (nodes[capacity:] == NOT_WRITTEN).all()
    assert ((local >= -1) & (local < capacity)).all()


def test_pairs_beyond_64_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="use fewer seeds per batch"):
        check_pairs(4, 1 << 62)


# The index of nodes on the device gives the local ids of a dictionary, batch after batch.


BATCHES = st.lists(st.lists(st.lists(st.integers(0, 11), max_size=15), max_size=3), max_size=3)


def check(index: DeviceNodeIndex, batches: list[list[list[int]]], dtype: torch.dtype) -> None:
    for batch in batches:
        index.clear()
        known: dict[int, int] = {}
        for ids in batch:
            expected = [known.setdefault(node, len(known)) for node in ids]
            local = index.insert(torch.tensor(ids, dtype=dtype, device=DEVICE))
            assert local.dtype == torch.int32
            assert local.tolist() == expected
        assert len(index) == len(known)
        assert index.nodes().tolist() == list(known)
        assert index.nodes(2).tolist() == list(known)[2:]


@settings(max_examples=few(4))
@given(batches=BATCHES, dtype=st.sampled_from([torch.int32, torch.int64]))
def test_local_ids_are_in_first_seen_order(batches: list[list[list[int]]], dtype: torch.dtype) -> None:
    check(DeviceNodeIndex(12, DEVICE), batches, dtype)


def test_stamps_that_start_again_mistake_nothing() -> None:
    index = DeviceNodeIndex(12, DEVICE)
    check(index, [[[5, 1, 5]]], torch.int64)
    index._batches = STAMP_LIMIT - 1
    check(index, [[[3, 1]], [[1, 5]], [[5, 5, 3]]], torch.int64)


def test_an_insertion_reads_nothing_and_a_count_once() -> None:
    index, ids = DeviceNodeIndex(50, DEVICE), torch.arange(40, device=DEVICE) % 7
    with counting() as reads:
        index.insert(ids)
        index.insert(ids)
    assert reads == {}
    with counting() as reads:
        assert len(index) == 7
        index.nodes(3)
    assert reads.total() == 1, reads
