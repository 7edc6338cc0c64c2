"""The index of nodes on the device gives the local ids of a dictionary, batch after batch."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from khop.kernels.triton.node_index import DeviceNodeIndex
from khop.kernels.triton.node_table import STAMP_LIMIT
from support.examples import few
from support.host_reads import counting
from support.triton_rows import DEVICE

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


@settings(max_examples=few(6))
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
