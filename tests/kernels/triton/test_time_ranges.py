"""Ranges within time limits, searched by Triton, are those of the CPU core."""

from __future__ import annotations

import pytest
import torch

from khop.draw import DrawKey
from khop.kernels.csc import Csc
from khop.kernels.draw_request import time_ranges as expected_ranges
from khop.kernels.edge_times import EdgeTimes, HopRows
from khop.kernels.triton.time_ranges import time_ranges
from support.draws import rising
from support.triton_rows import DEVICE, csc_on_device, on_device, padded, rows_on_device

LOW, HIGH = -(2**63), 2**63 - 1
DEGREES = [0, 1, 40, 7, 300]
WINDOWS = [(None, -1), ((100, 0), -1), ((100, -20), 5), (None, 3), ((HIGH, -9), -1), ((0, 0), 0)]


def graph() -> Csc:
    indptr = torch.tensor([0, *DEGREES]).cumsum(0)
    return Csc(indptr, (torch.arange(int(indptr[-1])) * 31 % 97).int())


def sorted_rows(csc: Csc, times: torch.Tensor) -> torch.Tensor:
    return torch.cat([row.sort().values for row in times.split(csc.indptr.diff().tolist())])


CSC = graph()
NODES = torch.arange(150) * 3 % 5
UNTIL = torch.arange(150) * 7919 % 400 - 200
UNTIL[:20] = torch.tensor([LOW, LOW + 5, HIGH, HIGH - 1] * 5)


def found_ranges(
    csc: Csc,
    own: EdgeTimes,
    nodes: torch.Tensor,
    until: torch.Tensor,
    window: tuple[int, int] | None,
    most: int,
) -> list[int]:
    rows = rows_on_device(HopRows(nodes, DrawKey(0), 0))
    ranges = torch.full((2 * rows.capacity,), -77, device=DEVICE)
    on = EdgeTimes(on_device(own.edges), on_device(own.sources))
    time_ranges(csc_on_device(csc), on, rows, padded(until, rows.capacity), ranges, window, most)
    begin, end = ranges[2 * nodes.numel() :].view(-1, 2).unbind(1)
    assert torch.equal(begin, end)
    return ranges[: 2 * nodes.numel()].tolist()


@pytest.mark.core(2)
@pytest.mark.parametrize(("window", "most"), WINDOWS)
def test_times_of_edges(window: tuple[int, int] | None, most: int) -> None:
    times = torch.arange(CSC.num_edges) * 7907 % 350 - 170
    times[::29], times[5::31] = LOW, HIGH
    times = sorted_rows(CSC, times)
    expected = expected_ranges(CSC, rising(CSC, times), NODES, UNTIL, window, most)
    assert found_ranges(CSC, EdgeTimes(times), NODES, UNTIL, window, most) == expected.tolist()


@pytest.mark.core(2)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_times_of_sources_and_the_later_of_both_in_every_dtype(dtype: torch.dtype) -> None:
    of_sources = (torch.arange(97) * 3).to(dtype)
    order = torch.cat(
        [
            begin + of_sources.long()[CSC.indices[begin:end].long()].argsort(stable=True)
            for begin, end in zip(CSC.indptr[:-1].tolist(), CSC.indptr[1:].tolist(), strict=True)
        ]
    )
    csc = Csc(CSC.indptr, CSC.indices[order])
    own = EdgeTimes(None, of_sources)
    expected = expected_ranges(csc, rising(csc, own.of(csc)), NODES, UNTIL, (90, -3), -1, own=own)
    assert found_ranges(csc, own, NODES, UNTIL, (90, -3), -1) == expected.tolist()
    both = EdgeTimes((own.of(csc) // 2).to(dtype), of_sources // 3)
    times = both.of(csc)
    assert torch.equal(times, sorted_rows(csc, times))
    expected = expected_ranges(csc, rising(csc, times), NODES, UNTIL, (40, 0), -1, own=both)
    assert found_ranges(csc, both, NODES, UNTIL, (40, 0), -1) == expected.tolist()


def test_an_empty_frontier_has_no_ranges() -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert (
        found_ranges(CSC, EdgeTimes(torch.zeros(CSC.num_edges, dtype=torch.int64)), none, none, None, -1)
        == []
    )
