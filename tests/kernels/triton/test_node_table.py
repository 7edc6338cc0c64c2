"""Local ids on the device are those of a dictionary, in first-seen order, hop after hop."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from khop.kernels.triton.node_table import (
    BLOCK,
    LOCAL_ID_LIMIT,
    Level,
    Numbering,
    assign,
    count_firsts,
    look_up,
    mark,
    num_blocks,
)
from support.examples import few
from support.triton_rows import DEVICE

NOT_WRITTEN = -7


def first_seen_reference(known: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return all nodes, int64, and the local id of each id, int32; -1 for ids below 0."""
    local = {node: number for number, node in enumerate(known.tolist())}
    found = [local.setdefault(node, len(local)) if node >= 0 else -1 for node in ids.tolist()]
    nodes = torch.tensor(list(local), dtype=torch.int64, device=ids.device)
    return nodes, torch.tensor(found, dtype=torch.int32, device=ids.device)


def number(count: int = 0) -> Tensor:
    return torch.tensor([count], dtype=torch.int32, device=DEVICE)


def numbering(num_nodes: int, base: int, stamp: int = 1) -> Numbering:
    table = torch.zeros(num_nodes, dtype=torch.int64, device=DEVICE)
    return Numbering(table, torch.tensor([stamp], device=DEVICE), torch.tensor([0], device=DEVICE), base)


def unwritten(count: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.full((count,), NOT_WRITTEN, dtype=dtype, device=DEVICE)


def insert(table: Numbering, ids: Tensor, level: Level) -> Tensor:
    """One hop; the local ids."""
    firsts = unwritten(num_blocks(ids.numel()), torch.int32)
    out = unwritten(ids.numel(), torch.int32)
    mark(table, ids)
    count_firsts(table, ids, firsts)
    assign(table, ids, firsts, level)
    look_up(table, ids, out)
    return out


def hops_of(num_nodes: int) -> st.SearchStrategy[list[list[int]]]:
    return st.lists(st.lists(st.integers(-1, num_nodes - 1), min_size=1, max_size=30), min_size=1, max_size=3)


@settings(max_examples=few(4))
@given(
    batches=st.lists(hops_of(20), min_size=1, max_size=3),
    dtype=st.sampled_from([torch.int32, torch.int64]),
)
def test_hops_of_batches_are_numbered_as_the_reference_does(
    batches: list[list[list[int]]], dtype: torch.dtype
) -> None:
    """The table keeps the entries of earlier batches: stamps tell them apart."""
    table = numbering(20, base=20)
    for stamp, hops in enumerate(batches, start=1):
        table.stamp.fill_(stamp)
        nodes, known = unwritten(20), number()
        want = torch.empty(0, dtype=torch.int64, device=DEVICE)
        for hop in hops:
            ids, count = torch.tensor(hop, dtype=dtype, device=DEVICE), number(NOT_WRITTEN)
            fresh, fresh_count = unwritten(20), number(NOT_WRITTEN)
            local = insert(table, ids, Level(nodes, known, count, 20, fresh, fresh_count))
            before = want.numel()
            want, want_local = first_seen_reference(want, ids)
            assert torch.equal(local, want_local)
            assert count.item() == want.numel()
            assert torch.equal(nodes[: want.numel()], want)
            assert fresh_count.item() == want.numel() - before
            assert torch.equal(fresh[: want.numel() - before], want[before:])
            known = count
        assert (nodes[want.numel() :] == NOT_WRITTEN).all()
    assert table.overflow.item() == 0


def test_many_blocks_are_numbered_in_the_order_of_their_slots() -> None:
    ids = torch.randint(-1, 4000, (5 * BLOCK + 3,), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    nodes, count = unwritten(4000), number()
    local = insert(numbering(4000, base=4000), ids, Level(nodes, number(), count, 4000))
    want, want_local = first_seen_reference(torch.empty(0, dtype=torch.int64, device=DEVICE), ids)
    assert torch.equal(local, want_local)
    assert torch.equal(nodes[: count.item()], want)


@pytest.mark.parametrize(
    ("capacity", "fresh_capacity", "overflows"), [(5, 3, False), (4, 3, True), (5, 2, True)]
)
def test_an_exceeded_capacity_is_reported_and_nothing_is_written_behind_it(
    capacity: int, fresh_capacity: int, overflows: bool
) -> None:
    """Two nodes are known, three are new."""
    table = numbering(20, base=10, stamp=3)
    nodes = unwritten(10)
    known, count, fresh_count = number(), number(), number()
    insert(table, torch.tensor([7, 8], device=DEVICE), Level(nodes, number(), known, 5))
    fresh = unwritten(10)
    level = Level(nodes, known, count, capacity, fresh[:fresh_capacity], fresh_count)
    local = insert(table, torch.tensor([8, 1, 2, 1, 3], device=DEVICE), level)
    room = min(capacity - 2, fresh_capacity)
    assert table.overflow.item() == (3 if overflows else 0)
    assert fresh_count.item() == min(3, fresh_capacity)
    assert count.item() == min(5, capacity)
    assert nodes.tolist() == [7, 8, 1, 2, 3][: 2 + room] + [NOT_WRITTEN] * (8 - room)
    assert (fresh[room:] == NOT_WRITTEN).all()
    assert ((local >= 0) & (local < 5)).all()  # safe to index rows by, used or not


def test_positions_that_do_not_fit_an_entry_are_refused() -> None:
    with pytest.raises(ValueError, match="sample fewer neighbors"):
        numbering(1, base=LOCAL_ID_LIMIT - 5).check_slots(5)
