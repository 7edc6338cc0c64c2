"""(tree, node) pairs get consecutive local ids in first-seen order, beside a dictionary."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.node_index import TreeIndex


@st.composite
def inserts(draw: st.DrawFn, num_nodes: int, num_trees: int) -> list[tuple[list[list[int]], list[int]]]:
    """Some calls: rows of node ids, and the tree of each row."""
    row = st.lists(st.integers(0, num_nodes - 1), max_size=4)
    trees = st.integers(0, num_trees - 1)
    calls = draw(st.lists(st.lists(st.tuples(row, trees), max_size=6), max_size=4))
    return [([ids for ids, _ in call], [tree for _, tree in call]) for call in calls]


@pytest.mark.parametrize("num_nodes", [1, 3, 700, 2**22 + 1, 2**40])
@given(data=st.data())
def test_local_ids_are_in_first_seen_order(num_nodes: int, data: st.DataObject) -> None:
    index = TreeIndex(num_nodes)
    for num_trees in data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=3)):
        index.reset(num_trees)
        expected: dict[tuple[int, int], int] = {}
        for rows, trees in data.draw(inserts(num_nodes, num_trees)):
            pairs = [(tree, node) for ids, tree in zip(rows, trees, strict=True) for node in ids]
            local = [expected.setdefault(pair, len(expected)) for pair in pairs]
            offsets = torch.tensor([0, *map(len, rows)]).cumsum(0)
            ids = torch.tensor([node for _, node in pairs], dtype=torch.int64)
            assert index.insert(ids, offsets, torch.tensor(trees, dtype=torch.int64)).tolist() == local
            assert len(index) == len(expected)
        for start in {0, len(index) // 2, len(index)}:
            nodes, trees_of_nodes = index.pairs(start)
            pairs = list(zip(trees_of_nodes.tolist(), nodes.tolist(), strict=True))
            assert pairs == list(expected)[start:]


def test_narrow_ids_are_taken_as_they_are() -> None:
    index = TreeIndex(9)
    index.reset(2)
    ids, offsets = torch.tensor([8, 0, 8], dtype=torch.int32), torch.tensor([0, 2, 3])
    assert index.insert(ids, offsets, torch.tensor([1, 0])).tolist() == [0, 1, 2]
    assert index.pairs(1)[0].tolist() == [0, 8]


@pytest.mark.parametrize(
    ("ids", "offsets", "trees", "message"),
    [
        ([1, 5], [0, 2], [0], r"node id 5: not in \[0, 5\)"),
        ([-1, 0], [0, 2], [0], "node id -1"),
        ([1, 2], [0, 2], [3], r"tree 3: not in \[0, 3\)"),
        ([1, 2], [0, 1], [0], "offset 1 at position 1"),
        ([1, 2], [0, 2], [0, 1], "one offset more"),
        ([1.0, 2.0], [0, 2], [0], "must be int32 or int64"),
    ],
)
def test_what_is_out_of_range_is_refused_and_nothing_is_inserted(
    ids: list[float], offsets: list[int], trees: list[int], message: str
) -> None:
    index = TreeIndex(5)
    index.reset(3)
    with pytest.raises(ValueError, match=message):
        index.insert(torch.tensor(ids), torch.tensor(offsets), torch.tensor(trees))
    assert len(index) == 0


def test_more_pairs_than_63_bits_hold_are_refused() -> None:
    index = TreeIndex(2**50)
    with pytest.raises(ValueError, match=r"16384 disjoint trees .* make the batch smaller"):
        index.reset(2**14)
    with pytest.raises(ValueError, match="num_nodes -1"):
        TreeIndex(-1)
