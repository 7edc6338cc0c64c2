"""All neighbors, expanded by Triton, are those of the CPU core."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from khop.draw import DrawKey, Neighbors
from khop.kernels.csc import Csc
from khop.kernels.edge_times import HopRows
from khop.kernels.triton.all_neighbors import EdgeTrees, Expansion, Omitted, all_neighbors
from khop.kernels.triton.exclude_edges import ExcludedPairs, pairs_of
from khop.kernels.triton.node_table import Overflow
from khop.kernels.triton.rows import Marks
from khop.sampling.rules.uniform import Uniform
from support.draws import sample_uniform
from support.triton_rows import DEVICE, assert_same, csc_on_device, rows_on_device


def graph(degrees: list[int], dtype: torch.dtype = torch.int32) -> Csc:
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    return Csc(indptr, (torch.arange(int(indptr[-1])) * 31 % 1009).to(dtype))


CSC = graph([0, 1, 3, 0, 700, 2, 5, 1])


def expansion(capacity: int, room: int, dtype: torch.dtype = torch.int32) -> Expansion:
    return Expansion(
        torch.full((capacity + 1,), -77, device=DEVICE),
        torch.full((room,), -77, dtype=dtype, device=DEVICE),
        torch.full((room,), -77, device=DEVICE),
        overflow=Overflow(torch.zeros(1, dtype=torch.int64, device=DEVICE), torch.tensor([9], device=DEVICE)),
    )


def rows_of(nodes: Tensor) -> HopRows:
    return HopRows(nodes, DrawKey(0), 0)


def expanded(csc: Csc, rows: HopRows, room: int) -> tuple[Neighbors, Expansion]:
    of_device = rows_on_device(rows)
    out = expansion(of_device.capacity, room, csc.indices.dtype)
    all_neighbors(csc_on_device(csc), of_device, out)
    count = rows.nodes.numel()
    total = int(out.offsets[count])
    assert out.offsets[count:].tolist() == [total] * (of_device.capacity + 1 - count)
    assert out.ids[total:].tolist() == [-1] * max(0, room - total)
    return Neighbors(out.offsets[: count + 1].cpu(), out.ids[:total].cpu(), out.edges[:total].cpu()), out


@pytest.mark.parametrize("count", [0, 1, 7, 600])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_give_all_edges_in_order(count: int, dtype: torch.dtype) -> None:
    csc = graph([0, 1, 3, 0, 90, 2, 5, 1], dtype)
    rows = rows_of(torch.arange(count) * 5 % 8)
    expected = sample_uniform(csc, rows, -1, Uniform(), edge_ids=True)
    found, out = expanded(csc, rows, expected.nodes.numel() + 4)
    assert_same(found, expected)
    assert out.overflow.flag.tolist() == [0]


def test_ranges_limit_the_edges() -> None:
    nodes = torch.tensor([4, 6, 4, 0])
    rows = replace(rows_of(nodes), ranges=torch.tensor([104, 204, 707, 708, 300, 300, 0, 0]))
    found, _ = expanded(CSC, rows, 101)
    assert_same(found, sample_uniform(CSC, rows, -1, Uniform(), edge_ids=True))


def test_edges_beyond_the_room_flag_the_batch_and_leave_true_offsets() -> None:
    rows = rows_of(torch.tensor([2, 4, 6]))
    expected = sample_uniform(CSC, rows, -1, Uniform(), edge_ids=True)
    _, out = expanded(CSC, rows, 100)
    assert out.overflow.flag.tolist() == [9]
    assert out.offsets[:4].tolist() == expected.offsets.tolist()
    assert out.ids.cpu().tolist() == expected.nodes[:100].tolist()


def test_the_first_position_of_each_source_is_marked() -> None:
    rows = rows_on_device(rows_of(torch.tensor([4, 2, 4])))
    out = expansion(rows.capacity, 1500)
    table = torch.zeros(1009, dtype=torch.int64, device=DEVICE)
    all_neighbors(csc_on_device(CSC), rows, out, Marks(table, torch.tensor([9], device=DEVICE), 50))
    ids = out.ids.tolist()
    expected = {node: (9 << 32) | ((1 << 31) - 1 - 50 - ids.index(node)) for node in ids if node >= 0}
    assert table.tolist() == [expected.get(node, 0) for node in range(1009)]


def test_omitted_edges_leave_empty_places() -> None:
    csc, nodes = graph([2, 4, 3]), torch.tensor([1, 2, 0, 1])
    sums = torch.tensor([5, 5, 0, 0, 3, 4, 2, 2, 9])  # edges 1, 2, 3 and 7 weigh 0
    excluded = torch.stack([csc.indices[[4, 8]].long(), torch.tensor([1, 2])])
    omitted = Omitted(sums.to(DEVICE), ExcludedPairs(pairs_of(excluded, 1009).to(DEVICE), 1009))
    of_rows = torch.tensor([7, 8, 9, 7], device=DEVICE)
    trees = EdgeTrees(of_rows, torch.zeros(15, dtype=torch.int64, device=DEVICE))
    table = torch.zeros(1009, dtype=torch.int64, device=DEVICE)
    out, rows = (
        replace(expansion(4, 15), trees=trees, omitted=omitted),
        rows_on_device(rows_of(nodes), spare=0),
    )
    marks = Marks(table, torch.tensor([9], device=DEVICE), 50)
    all_neighbors(csc_on_device(csc), rows, out, marks)
    assert out.edges.tolist() == [-1, -1, -1, 5, 6, -1, -1, 0, -1, -1, -1, -1, 5, -1, -1]
    assert (out.ids >= 0).tolist() == (out.edges >= 0).tolist()
    assert trees.of_edges[:13].tolist() == [7] * 4 + [8] * 3 + [9] * 2 + [7] * 4
    assert (table > 0).nonzero().flatten().tolist() == sorted(csc.indices[[0, 5, 6]].tolist())
