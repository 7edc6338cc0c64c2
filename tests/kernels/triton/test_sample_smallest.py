"""The smallest keys of each row on the device: the picks of the CPU core, by source and by edge."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

import khop.kernels.triton.sample_smallest as triton_smallest
from khop.draw import DrawKey
from khop.kernels.choice import Engine, forcing
from khop.kernels.csc import Csc
from khop.kernels.draw_request import DrawRequest, Kernel
from khop.kernels.edge_times import HopRows
from khop.kernels.philox import SourceNumbers
from khop.kernels.sample_hop import sample_hop
from khop.kernels.sample_reference import sample_smallest_reference
from khop.kernels.triton.draw_hop import can_draw
from khop.kernels.triton.node_table import Numbering
from khop.kernels.triton.rows import Slots, rows_of
from khop.kernels.triton.sample_smallest import LONG_ROW, SourceOrder, sample_smallest
from support.triton_rows import DEVICE, csc_on_device, on_device

STREAM, SOURCES = 0xFEEDBEEF, 300
KEY = DrawKey.of(7, 2, 1, 11)  # type: ignore[arg-type]


def csc_of(degrees: list[int], seed: int, dtype: torch.dtype) -> Csc:
    """Rows of different sources in no order."""
    random = torch.Generator().manual_seed(seed)
    rows = [torch.randperm(SOURCES, generator=random)[:degree] for degree in degrees]
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    return Csc(indptr, torch.cat(rows).to(dtype) if rows else torch.empty(0, dtype=dtype))


def asked(csc: Csc, nodes: Tensor, fanout: int, order: SourceNumbers | Tensor, **more: Tensor) -> DrawRequest:
    rows = HopRows(nodes, KEY, STREAM, ranges=more.get("ranges"))
    ids = more.get("source_ids")
    return DrawRequest(
        csc, rows, fanout, sample_smallest_reference, Kernel.SMALLEST, source_ids=ids, order=order
    )


def moved(request: DrawRequest) -> DrawRequest:
    rows = request.rows
    placed = HopRows(rows.nodes.to(DEVICE), rows.key, rows.stream, ranges=on_device(rows.ranges))
    order = request.order.to(DEVICE) if isinstance(request.order, Tensor) else request.order
    csc, ids = csc_on_device(request.csc), on_device(request.source_ids)
    return replace(request, csc=csc, rows=placed, order=order, source_ids=ids)


def assert_drawn_as_on_the_cpu(requests: list[DrawRequest]) -> None:
    wanted = sample_hop(requests, edge_ids=True)
    with forcing(Engine.TRITON):
        assert all(can_draw(request) for request in requests)
        found = sample_hop([moved(request) for request in requests], edge_ids=True)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.nodes.dtype == theirs.nodes.dtype
        for name in ("offsets", "nodes", "edges"):
            assert torch.equal(getattr(ours, name).cpu(), getattr(theirs, name)), name


@pytest.mark.long
@settings(max_examples=8, phases=[Phase.generate])  # a program of the interpreter takes 0.1 s
@given(
    st.lists(st.sampled_from([0, 3, 5, 40, 290]), min_size=1, max_size=4),
    st.sampled_from([1, 4, 7]),
    st.sampled_from([torch.int32, torch.int64]),
    st.sampled_from([0, 7, 30, 61]),
    st.sampled_from([50, LONG_ROW]),
    st.integers(0, 1000),
)
def test_picks_are_those_of_the_core(
    degrees: list[int], fanout: int, dtype: torch.dtype, shift: int, long_row: int, seed: int
) -> None:
    csc = csc_of(degrees, seed, dtype)
    random = torch.Generator().manual_seed(seed)
    nodes = torch.randint(len(degrees), (3,), generator=random)
    begin, end = csc.indptr[nodes], csc.indptr[nodes + 1]
    ranges = torch.stack([begin + (end - begin) // 4, end], 1).flatten()
    originals = torch.randperm(SOURCES, generator=random)[csc.indices.long()]
    ties = torch.randint(-2, 3, (csc.num_edges,), generator=random) << shift
    numbers = SourceNumbers.of(KEY, STREAM)
    requests = [
        asked(csc, nodes, fanout, numbers),
        asked(csc, nodes, fanout, numbers, source_ids=originals),
        asked(csc, nodes, fanout, SourceNumbers.of(KEY, STREAM, 4), ranges=ranges),
        asked(csc, nodes, fanout, ties),
        asked(csc, nodes, fanout, ties, ranges=ranges),
        asked(csc, nodes[:0], fanout, ties),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_smallest, "LONG_ROW", long_row)
        assert_drawn_as_on_the_cpu(requests)


def test_picks_of_a_few_rows_are_those_of_the_core() -> None:
    csc, nodes = csc_of([0, 140, 2], 1, torch.int32), torch.tensor([2, 1, 0])
    originals = (torch.arange(SOURCES) * 7 % SOURCES)[csc.indices.long()]
    keys = torch.arange(csc.num_edges) % 5 - 2 << 61
    assert_drawn_as_on_the_cpu(
        [
            asked(csc, nodes, 3, SourceNumbers.of(KEY, STREAM, 4), source_ids=originals),
            asked(csc, nodes, 3, keys),
        ]
    )


@pytest.mark.core(1)
@pytest.mark.parametrize("bits", [1, 9, 40, 64])
def test_a_long_row_has_keys_that_differ_in_few_bits(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of a second launch and one of the first; the last digit of 8 bits decides, or none."""
    monkeypatch.setattr(triton_smallest, "LONG_ROW", 200)
    csc = csc_of([250, 150], 2, torch.int32)
    random = torch.Generator().manual_seed(bits)
    words = torch.randint(-(1 << 63), (1 << 63) - 1, (csc.num_edges,), generator=random)
    keys = words if bits == 64 else words & (1 << bits) - 1
    assert_drawn_as_on_the_cpu([asked(csc, torch.tensor([1, 0]), 20, keys)])


def test_without_numbers_they_come_from_the_key_on_the_device_and_nodes_are_marked() -> None:
    csc = csc_of([5, 60, 2], 3, torch.int32)
    rows = HopRows(torch.tensor([1, 2, 1]), KEY, STREAM)
    (wanted,) = sample_hop([asked(csc, rows.nodes, 4, SourceNumbers.of(KEY, STREAM))], edge_ids=True)
    placed = csc_on_device(csc)
    table = torch.zeros(SOURCES, dtype=torch.int64, device=DEVICE)
    stamp, overflow = (torch.tensor([n], device=DEVICE) for n in (5, 0))
    on_gpu = rows_of(HopRows(rows.nodes.to(DEVICE), KEY, STREAM))
    slots = Slots.empty(3, 4, torch.int32, on_gpu.nodes)
    marks = Numbering(table, stamp, overflow, 100).marks(0)
    sample_smallest(placed, on_gpu, 4, SourceOrder(STREAM), slots, marks)
    assert slots.counts.tolist() == [4, 2, 4]
    ids = slots.ids.view(3, 4).cpu()
    assert [row[row >= 0].tolist() for row in ids] == [
        wanted.nodes[begin:end].tolist() for begin, end in ((0, 4), (4, 6), (6, 10))
    ]
    assert set((table != 0).nonzero().flatten().tolist()) == set(wanted.nodes.tolist())


def test_rows_with_parallel_edges_are_left_to_torch() -> None:
    csc = csc_of([5], 3, torch.int32)
    request = asked(csc, torch.tensor([0]), 2, SourceNumbers.of(KEY, STREAM))
    assert not can_draw(replace(request, has_parallel=torch.ones(1, dtype=torch.uint8)))


@pytest.mark.parametrize("fanout", [0, -1])
def test_a_fanout_without_picks_is_refused(fanout: int) -> None:
    csc = csc_on_device(csc_of([5], 3, torch.int32))
    rows = rows_of(HopRows(torch.tensor([0], device=DEVICE), KEY, STREAM))
    slots = Slots.empty(1, 1, torch.int32, rows.nodes)
    with pytest.raises(ValueError, match=f"fanout {fanout}: must be from 1"):
        sample_smallest(csc, rows, fanout, SourceOrder(STREAM), slots)
