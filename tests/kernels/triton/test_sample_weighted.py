"""Weighted draws by Triton have the bits of the CPU core."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from khop.draw import DrawKey, Neighbors
from khop.kernels.csc import Csc
from khop.kernels.edge_arrays import weight_sums
from khop.kernels.edge_times import HopRows
from khop.kernels.triton.rows import Marks
from khop.kernels.triton.sample_weighted import MOST_PICKS, sample_weighted
from khop.sampling.rules.weighted import Weighted
from support.draws import rising
from support.draws import sample_weighted as expected_draw
from support.triton_rows import (
    DEVICE,
    assert_same,
    csc_on_device,
    empty_slots,
    neighbors,
    on_device,
    rows_on_device,
)

KEY, STREAM = DrawKey(0xFEDCBA9876543210), 0x8D1C2A1B
DISTINCT, REPEATED = Weighted("w"), Weighted("w", replacement=True)
DEGREES = [0, 1, 2, 5, 7, 15, 16, 17, 40, 120, 3]


def graph(dtype: torch.dtype = torch.int32) -> Csc:
    indptr = torch.tensor([0, *DEGREES]).cumsum(0)
    return Csc(indptr, (torch.arange(int(indptr[-1])) * 31 % 1009).to(dtype))


CSC = graph()
PLACE = torch.arange(CSC.num_edges)
WEIGHTS = {
    "even": PLACE * 7919 % 101 + 1.0,
    "with zeros": (PLACE * 7919 % 101) * (PLACE % 3 == 0).double(),
    "skewed": torch.where(PLACE % 9 == 2, 1e9, (PLACE % 4).double()),  # takes the exact remainder
    "none": PLACE * 0.0,
}


def drawn(csc: Csc, sums: Tensor, rows: HopRows, fanout: int, rule: Weighted) -> Neighbors:
    of_device = rows_on_device(rows)
    slots = empty_slots(of_device, fanout, csc.indices.dtype)
    sample_weighted(csc_on_device(csc), on_device(sums), of_device, fanout, rule.replacement, slots)
    return neighbors(slots, rows.nodes.numel())


def rows_of(count: int) -> HopRows:
    return HopRows(torch.arange(count) * 7 % CSC.num_rows, KEY, STREAM)


@pytest.mark.parametrize("rule", [DISTINCT, REPEATED], ids=["distinct", "repeated"])
@pytest.mark.parametrize(
    ("weights", "fanout"),
    [("with zeros", 1), ("skewed", 4), ("none", 10), ("even", 11)]
    + [
        pytest.param(name, fanout, marks=pytest.mark.long)
        for name, done in zip(WEIGHTS, (11, 1, 4, 10), strict=True)
        for fanout in {1, 4, 10, 11} - {done}
    ],
)
def test_every_fanout_and_distribution_gives_the_bits_of_the_core(
    weights: str, fanout: int, rule: Weighted
) -> None:
    sums, rows = weight_sums(CSC, WEIGHTS[weights]), rows_of(11)
    expected = expected_draw(CSC, rising(CSC, sums), rows, fanout, rule, edge_ids=True)
    assert_same(drawn(CSC, sums, rows, fanout, rule), expected)


@pytest.mark.long
@pytest.mark.parametrize(
    ("dtype", "rule"),
    [
        (torch.int64, DISTINCT),
        (torch.int32, REPEATED),
        pytest.param(torch.int32, DISTINCT, marks=pytest.mark.long),
        pytest.param(torch.int64, REPEATED, marks=pytest.mark.long),
    ],
)
def test_original_ids_trees_and_ranges_key_and_limit_the_draws(dtype: torch.dtype, rule: Weighted) -> None:
    csc, rows = graph(dtype), replace(rows_of(11), stream=0x7FFFFFFF)
    sums = weight_sums(csc, WEIGHTS["even"])  # others need many attempts, which the interpreter makes slowly
    begin, end = csc.indptr[rows.nodes], csc.indptr[rows.nodes + 1]
    begin = begin + (end - begin) // 3
    end = torch.where(torch.arange(11) % 9 == 4, begin, end)  # nothing allowed
    for changed in (
        replace(rows, original_ids=torch.arange(csc.num_rows) * 3 + (1 << 40)),
        replace(rows, tree=torch.arange(11) * ((1 << 41) + 1)),
        replace(rows, ranges=torch.stack([begin, end], 1).flatten()),
    ):
        expected = expected_draw(csc, rising(csc, sums), changed, 5, rule, edge_ids=True)
        assert_same(drawn(csc, sums, changed, 5, rule), expected)


def test_an_empty_frontier_draws_nothing() -> None:
    rows, sums = HopRows(torch.empty(0, dtype=torch.int64), KEY, STREAM), weight_sums(CSC, WEIGHTS["even"])
    for rule in (DISTINCT, REPEATED):
        assert drawn(CSC, sums, rows, 3, rule).offsets.tolist() == [0]


@pytest.mark.long
@pytest.mark.parametrize("rule", [DISTINCT, REPEATED], ids=["distinct", "repeated"])
def test_the_first_position_of_each_drawn_node_is_marked_in_the_same_launch(rule: Weighted) -> None:
    csc, rows = csc_on_device(CSC), rows_on_device(rows_of(13))
    sums = on_device(weight_sums(CSC, WEIGHTS["even"]))
    slots = empty_slots(rows, 6, torch.int64)
    table = torch.zeros(1009, dtype=torch.int64, device=DEVICE)
    marks = Marks(table, torch.tensor([6], device=DEVICE), 4000)
    sample_weighted(csc, sums, rows, 6, rule.replacement, slots, marks)
    ids = slots.ids.tolist()
    expected = {node: (6 << 32) | ((1 << 31) - 1 - 4000 - ids.index(node)) for node in ids if node >= 0}
    assert table.tolist() == [expected.get(node, 0) for node in range(1009)]


def test_a_fanout_that_does_not_fit_the_registers_is_refused() -> None:
    rows, sums = rows_on_device(rows_of(2)), on_device(weight_sums(CSC, WEIGHTS["even"]))
    slots = empty_slots(rows, 1, torch.int32)
    with pytest.raises(ValueError, match=f"fanout 129: must be from 1 to {MOST_PICKS} on the device"):
        sample_weighted(csc_on_device(CSC), sums, rows, 129, False, slots)
