"""Nodes of one type are numbered in first-seen order, each once in a batch, or once in a tree.

Counts of a batch: each cell is read at its place, beside the stamp of the last overflow.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.triton.hash_table import Trees
from khop.sampling.on_device.type_nodes import Cells, DenseTable, TreeTable, TypeNodes, counts_of
from support.triton_rows import DEVICE

IDS = st.lists(st.integers(-1, 19), min_size=1, max_size=12)


def tensor(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=DEVICE)


@given(batches=st.lists(st.lists(IDS, min_size=1, max_size=3), min_size=1, max_size=2))
def test_first_seen_order_over_the_hops_of_a_batch(batches: list[list[list[int]]]) -> None:
    """The table is shared by batches one after another; an id of -1 is an empty slot."""
    table = DenseTable(20, DEVICE)
    for stamp, hops in enumerate(batches, start=1):
        cells, seen = Cells(9, DEVICE), dict[int, None]()
        nodes = TypeNodes(table.numbers(tensor(stamp), cells.overflow, 64, None), 64, cells.take(), DEVICE)
        for level, ids in enumerate(hops):
            slots = nodes.numbers.slots(tensor(*ids))
            nodes.numbers.plant(slots, None)
            before = len(seen)
            seen |= dict.fromkeys(node for node in ids if node >= 0)
            fill = nodes.add_level(slots, 64, 16, cells)
            assert fill is not None
            fill()
            count = int(nodes.counts[level].value)
            assert nodes.nodes[:count].tolist() == list(seen)
            fresh = nodes.fresh(level)
            assert fresh.nodes[: int(fresh.count.value)].tolist() == list(seen)[before:]
            assert nodes.frontier(level, 7).nodes.tolist() == nodes.nodes[:7].tolist()


def test_a_level_without_slots_adds_nothing() -> None:
    cells = Cells(2, DEVICE)
    none = cells.take()
    nodes = TypeNodes(DenseTable(5, DEVICE).numbers(tensor(1), cells.overflow, 8, None), 8, none, DEVICE)
    assert nodes.add_level(None, 8, 8, cells) is None
    assert nodes.counts == [none]
    assert nodes.fresh(0).nodes.numel() == 0


def test_a_node_has_a_number_in_every_tree() -> None:
    cells, trees = Cells(3, DEVICE), Trees(tensor(100, 101), None)
    table = TreeTable(20, 8, 2, DEVICE)
    numbers = table.numbers(tensor(1), cells.overflow, 8, trees)
    numbers.start()
    nodes = TypeNodes(numbers, 8, cells.take(), DEVICE)
    slots = numbers.slots(tensor(7, 7, 3, 7))
    numbers.plant(slots, tensor(0, 1, 0, 0))
    fill = nodes.add_level(slots, 8, None, cells)
    assert fill is not None
    fill()
    count = int(nodes.counts[0].value)
    assert nodes.nodes[:count].tolist() == [7, 7, 3]
    assert nodes.tree_rows.trees[:count].tolist() == [0, 1, 0]


@pytest.mark.parametrize("base", [1 << 31, (1 << 31) - 3])
def test_more_slots_than_an_entry_can_tell_apart_are_refused(base: int) -> None:
    numbers = DenseTable(5, DEVICE).numbers(tensor(1), tensor(0), base, None)
    with pytest.raises(ValueError, match="sample fewer neighbors"):
        numbers.slots(tensor(1, 2, 3))


def test_cells_are_apart_and_read_at_once() -> None:
    cells = Cells(5, DEVICE)
    taken = [cells.take() for _ in range(5)]
    assert counts_of(cells.values).values == [0] * 6
    for number, cell in enumerate(taken, start=1):
        cell.value.fill_(number * 11)
    cells.overflow.fill_((1 << 31) - 1)
    counts = counts_of(cells.values.clone())
    assert [counts[cell] for cell in taken] == [11, 22, 33, 44, 55]
    assert counts.overflowed == (1 << 31) - 1
    assert all(cell.value.data_ptr() % 16 == 0 for cell in taken)
