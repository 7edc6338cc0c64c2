"""Edges removed by Triton are those that the CPU core removes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from khop.kernels.edge_arrays import exclude_edges as expected_removal
from khop.kernels.triton.exclude_edges import NO_PAIR, ExcludedPairs, check_pairs, exclude_edges, pairs_of
from khop.kernels.triton.rows import Marks, Slots
from support.examples import few
from support.triton_rows import DEVICE, assert_same, neighbors

NODES = 6
PAIRS = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)), max_size=12)
ROWS = st.lists(
    st.tuples(st.integers(0, NODES - 1), st.lists(st.integers(0, NODES - 1), max_size=4)),
    min_size=1,
    max_size=20,
)


@settings(max_examples=few(4))
@given(rows=ROWS, pairs=PAIRS, spare=st.integers(0, 3), dtype=st.sampled_from([torch.int32, torch.int64]))
def test_what_is_left_is_what_the_core_leaves(
    rows: list[tuple[int, list[int]]], pairs: list[tuple[int, int]], spare: int, dtype: torch.dtype
) -> None:
    """The rest is marked at its new places; rows behind the last one stay empty."""
    capacity = len(rows) + 2
    ids, edges = torch.full((capacity, 4), -1, dtype=dtype), torch.full((capacity, 4), -1)
    counts = torch.zeros(capacity, dtype=torch.int32)
    for row, (_, sources) in enumerate(rows):
        counts[row] = len(sources)
        ids[row, : len(sources)] = torch.tensor(sources, dtype=dtype)
        edges[row, : len(sources)] = torch.arange(len(sources)) + 10 * row
    slots = Slots(ids.flatten().to(DEVICE), counts.to(DEVICE), edges.flatten().to(DEVICE))
    nodes = torch.tensor([node for node, _ in rows] + [77, 77])
    excluded = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).t()
    expected = expected_removal(neighbors(slots, len(rows)), nodes[: len(rows)], excluded)
    table = torch.zeros(NODES, dtype=torch.int64, device=DEVICE)
    behind = torch.full((spare,), NO_PAIR)
    of_device = ExcludedPairs(torch.cat([pairs_of(excluded, NODES), behind]).to(DEVICE), NODES)
    exclude_edges(nodes.to(DEVICE), of_device, slots, Marks(table, torch.tensor([5], device=DEVICE), 100))
    assert_same(neighbors(slots, len(rows)), expected)
    marked: dict[int, int] = {}
    for position, node in enumerate(slots.ids.tolist()):
        if node >= 0:
            marked.setdefault(node, (5 << 32) | (2**31 - 1 - 100 - position))
    assert table.tolist() == [marked.get(node, 0) for node in range(NODES)]


def test_pairs_beyond_64_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="pairs exceed 64 bits"):
        check_pairs(1 << 32, 1 << 31)
