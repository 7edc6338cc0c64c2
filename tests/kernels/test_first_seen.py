"""Keys are numbered as a dictionary numbers them, in torch."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.first_seen import FirstSeen
from khop.kernels.tree_index import TorchTreeIndex, TreeIndex

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
