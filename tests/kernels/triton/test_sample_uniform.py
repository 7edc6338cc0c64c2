"""Uniform draws by Triton have the bits of the CPU core."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from khop.draw import DrawKey, Neighbors
from khop.kernels.csc import Csc
from khop.kernels.edge_times import HopRows
from khop.kernels.triton.rows import Marks
from khop.kernels.triton.sample_uniform import MOST_PICKS, sample_uniform
from khop.sampling.rules.uniform import Uniform
from support.draws import sample_uniform as expected_draw
from support.triton_rows import DEVICE, assert_same, csc_on_device, empty_slots, neighbors, rows_on_device

KEY, STREAM = DrawKey(0xFEDCBA9876543210), 0x8D1C2A1B
HUB = (1 << 20) + 5
DISTINCT, REPEATED = Uniform(), Uniform(replacement=True)


def graph(degrees: list[int], dtype: torch.dtype = torch.int32) -> Csc:
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    return Csc(indptr, (torch.arange(int(indptr[-1])) * 31 % 1009).to(dtype))


SMALL = graph([0, 1, 2, 5, 7, 15, 16, 17, 40, 400, 3])
HUBS = graph([3, HUB, (1 << 20) - 1, 0, 1 << 20, 20])


def drawn(csc: Csc, rows: HopRows, fanout: int, rule: Uniform) -> Neighbors:
    of_device = rows_on_device(rows)
    slots = empty_slots(of_device, fanout, csc.indices.dtype)
    sample_uniform(csc_on_device(csc), of_device, fanout, rule.replacement, slots)
    return neighbors(slots, rows.nodes.numel())


def rows_of(csc: Csc, count: int = 300) -> HopRows:
    return HopRows(torch.arange(count) * 7 % csc.num_rows, KEY, STREAM)


@pytest.mark.core(3)
@pytest.mark.parametrize("rule", [DISTINCT, REPEATED], ids=["distinct", "repeated"])
@pytest.mark.parametrize("fanout", [1, 2, 3, 4, 15, 16, 17, 64, 130])
def test_every_fanout_gives_the_bits_of_the_core(fanout: int, rule: Uniform) -> None:
    rows = rows_of(SMALL, 140 if fanout <= 16 else 11)
    assert_same(drawn(SMALL, rows, fanout, rule), expected_draw(SMALL, rows, fanout, rule, edge_ids=True))


@pytest.mark.parametrize("rule", [DISTINCT, REPEATED], ids=["distinct", "repeated"])
@pytest.mark.parametrize("fanout", [7, 20])
def test_hubs_draw_64_bits_and_the_rows_beside_them_32(fanout: int, rule: Uniform) -> None:
    rows = rows_of(HUBS, 12)
    assert_same(drawn(HUBS, rows, fanout, rule), expected_draw(HUBS, rows, fanout, rule, edge_ids=True))


@pytest.mark.core(1)
@pytest.mark.parametrize("rule", [DISTINCT, REPEATED], ids=["distinct", "repeated"])
@pytest.mark.parametrize(
    ("dtype", "fanout"),
    [
        (torch.int64, 5),
        (torch.int32, 18),
        pytest.param(torch.int32, 5, marks=pytest.mark.long),
        pytest.param(torch.int64, 18, marks=pytest.mark.long),
    ],
)
def test_original_ids_trees_and_ranges_key_and_limit_the_draws(
    dtype: torch.dtype, fanout: int, rule: Uniform
) -> None:
    csc = graph([4, 60, 0, 9, 31, 120], dtype)
    nodes = torch.arange(20) * 5 % 6
    begin, end = csc.indptr[nodes], csc.indptr[nodes + 1]
    begin = begin + (end - begin) // 3
    end = torch.where(torch.arange(20) % 9 == 4, begin, end)  # nothing allowed
    rows = HopRows(nodes, KEY, 0x7FFFFFFF)
    for changed in (
        replace(rows, original_ids=torch.arange(6) * 3 + (1 << 40)),
        replace(rows, tree=torch.arange(20) * ((1 << 41) + 1)),
        replace(rows, ranges=torch.stack([begin, end], 1).flatten()),
    ):
        expected = expected_draw(csc, changed, fanout, rule, edge_ids=True)
        assert_same(drawn(csc, changed, fanout, rule), expected)


@pytest.mark.core(1)
@pytest.mark.parametrize("fanout", [3, 70])
def test_an_empty_frontier_draws_nothing(fanout: int) -> None:
    rows = HopRows(torch.empty(0, dtype=torch.int64), KEY, STREAM)
    for rule in (DISTINCT, REPEATED):
        assert drawn(SMALL, rows, fanout, rule).offsets.tolist() == [0]


def test_nodes_outside_the_graph_draw_nothing() -> None:
    nodes = torch.tensor([-1, 8, SMALL.num_rows, 1 << 40])
    found = drawn(SMALL, HopRows(nodes, KEY, STREAM), 5, DISTINCT)
    assert found.offsets.tolist() == [0, 0, 5, 5, 5]


@pytest.mark.core(1)
@pytest.mark.parametrize(("fanout", "rule"), [(3, DISTINCT), (20, DISTINCT), (20, REPEATED)])
def test_the_first_position_of_each_drawn_node_is_marked_in_the_same_launch(
    fanout: int, rule: Uniform
) -> None:
    csc, rows = csc_on_device(SMALL), rows_on_device(rows_of(SMALL, 22))
    slots = empty_slots(rows, fanout, torch.int64)
    table = torch.full((1009,), (5 << 32) + 3, device=DEVICE)  # entries of an earlier batch
    base, stamp = 4000, 6
    sample_uniform(
        csc, rows, fanout, rule.replacement, slots, Marks(table, torch.tensor([stamp], device=DEVICE), base)
    )
    expected = {}
    for position, node in enumerate(slots.ids.tolist()):
        if node >= 0:
            expected.setdefault(node, (stamp << 32) | ((1 << 31) - 1 - (base + position)))
    for node, entry in enumerate(table.tolist()):
        assert entry == expected.get(node, (5 << 32) + 3)


def test_a_fanout_that_does_not_fit_the_registers_is_refused() -> None:
    rows = rows_on_device(rows_of(SMALL, 2))
    slots = empty_slots(rows, 1, torch.int32)
    with pytest.raises(ValueError, match=f"fanout 9000: must be from 1 to {MOST_PICKS} on the device"):
        sample_uniform(csc_on_device(SMALL), rows, 9000, DISTINCT.replacement, slots)
