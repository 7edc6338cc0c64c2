"""Lazy rows: a subclass computes some operations in its own way, all others with dense rows.

Rows by id: sums over edges read the table with the bits of gathered rows; other operations gather.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.kernels.choice import Engine, forcing
from khop.kernels.gather import Copies, GatheredColumn
from khop.kernels.lazy_rows import LazyRows, RowsById, is_readable
from khop.kernels.moments import Moments
from khop.kernels.segment import prefix_and_mean, segment_max, segment_mean, segment_sum
from khop.kernels.segment_weighted import segment_mixture, segment_weighted_sum
from support.triton_segments import Edges, assert_same_bits, some_edges


class Ones(LazyRows):
    """Rows of ones, which count how often somebody needed them."""

    made = 0

    @staticmethod
    def __new__(cls: type[Ones], count: int, width: int) -> Ones:
        rows: Ones = Tensor._make_wrapper_subclass(cls, (count, width))
        return rows

    def dense(self) -> Tensor:
        Ones.made += 1
        return torch.ones(tuple(self.shape))


def in_halves(rows: Ones, divisor: object) -> object:
    return torch.full(tuple(rows.shape), 0.5) if divisor == 2 else NotImplemented


Ones._own = {Tensor.div: in_halves}


def test_shapes_and_own_operations_make_no_rows() -> None:
    rows, before = Ones(2, 3), Ones.made
    assert (rows.shape, rows.dim(), rows.dtype, rows.device.type) == ((2, 3), 2, torch.float32, "cpu")
    assert torch.equal(rows.div(2), torch.full((2, 3), 0.5))
    assert Ones.made == before


def test_other_operations_and_refused_ones_have_dense_rows_and_gradients_of_other_operands() -> None:
    rows, weight = Ones(2, 3), torch.zeros(4, 3, requires_grad=True)
    assert torch.equal(rows.div(4), torch.full((2, 3), 0.25))
    assert torch.equal(torch.cat([rows, torch.zeros(1, 3)]).sum(1), torch.tensor([3.0, 3, 0]))
    F.linear(rows, weight).sum().backward()
    assert torch.equal(weight.grad, torch.full((4, 3), 2.0))  # type: ignore[arg-type]


def ids_of(edges: Edges, table_rows: int = 61) -> Tensor:
    return torch.randint(table_rows, (edges.num_sources,), generator=torch.Generator().manual_seed(3))


def weighted(x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    weights = torch.randn(indices.numel(), generator=torch.Generator().manual_seed(4))
    return segment_weighted_sum(x, weights, indptr, indices)


def mixed(x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """The mixtures, with the gradient of the weights in their last rows."""
    weights = torch.randn(indices.numel(), 3, generator=torch.Generator().manual_seed(5))
    weights = weights.to(x.dtype).requires_grad_()
    out = segment_mixture(x, weights, indptr, indices)
    (gradient,) = torch.autograd.grad(out, weights, out.detach().flip(0))
    return torch.cat([out.detach().flatten(), gradient.flatten()])


@pytest.mark.parametrize("engine", [Engine.NATIVE, Engine.TORCH], ids=str)
@given(edges=some_edges())
def test_sums_over_edges_are_those_of_gathered_rows(engine: Engine, edges: Edges) -> None:
    table, ids = edges.values(61), ids_of(edges)
    gathered, rows = table[ids], RowsById(table, ids)
    with forcing(engine):
        for operation in (segment_sum, segment_mean, segment_max, weighted, mixed):
            expected = operation(gathered, edges.indptr, edges.indices)
            assert_same_bits(operation(rows, edges.indptr, edges.indices), expected)


def test_sums_do_not_gather() -> None:
    table, indptr = torch.randn(5, 3), torch.tensor([0, 2, 3])
    rows = RowsById(table, torch.tensor([4, 4, 1, 0]))
    own, mean = prefix_and_mean(rows, indptr, torch.tensor([3, 1, 2], dtype=torch.int32))
    assert rows._gathered is None
    assert torch.equal(own, table[[4, 4]])
    assert torch.equal(mean, torch.stack([(table[0] + table[4]) / 2, table[1]]))
    segment_mixture(rows, torch.randn(3, 2), indptr, torch.tensor([3, 1, 2]))
    assert rows._gathered is None


def test_indices_outside_are_an_error() -> None:
    rows = RowsById(torch.randn(5, 3), torch.tensor([4, 1]))
    with pytest.raises(IndexError):
        segment_mean(rows, torch.tensor([0, 1]), torch.tensor([2], dtype=torch.int32))
    with pytest.raises(ValueError, match="5"):
        segment_mean(RowsById(rows.table, torch.tensor([5])), torch.tensor([0, 1]), torch.tensor([0]).int())


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x + 1,
        lambda x: x[:3],
        lambda x: x[2],
        lambda x: x.reshape(-1, 3) * 2,
        lambda x: x.reshape(2, 6),
        lambda x: x.to(torch.float32).sum(),
        lambda x: x.to(torch.float64),
        lambda x: x.clone(),
        lambda x: x.index_select(0, torch.tensor([1, 1])),
        lambda x: torch.cat([x, x], 1),
        lambda x: F.linear(x, torch.arange(6.0).view(2, 3)),
    ],
)
def test_every_operation_is_that_of_gathered_rows(operation: Callable[[Tensor], Tensor]) -> None:
    table, ids = torch.randn(9, 3), torch.tensor([8, 0, 0, 5])
    found = operation(RowsById(table, ids))
    assert type(found) is Tensor
    assert torch.equal(found, operation(table[ids]))


def test_a_static_batch_reads_its_ids_in_each_operation() -> None:
    table, ids, live = torch.randn(9, 3), torch.tensor([8, 0, 7]), torch.tensor([2], dtype=torch.int32)
    rows = RowsById(table, ids, live)
    assert torch.equal(rows + 0, torch.cat([table[[8, 0]], torch.zeros(1, 3)]))
    ids.copy_(torch.tensor([1, 2, 3]))
    live.fill_(3)
    assert torch.equal(rows + 0, table[1:4])


def test_memory_is_that_of_the_ids() -> None:
    ids = torch.tensor([1, 0])
    rows = RowsById(torch.randn(9, 3), ids)
    assert rows.nbytes == ids.nbytes
    assert rows.untyped_storage().data_ptr() == ids.data_ptr()


def test_tables_are_readable_in_one_piece_as_they_are_stored() -> None:
    table, cpu = torch.randn(4, 3), torch.device("cpu")
    assert is_readable(GatheredColumn(table), cpu)
    assert is_readable(GatheredColumn(table.bfloat16()), cpu)
    assert not is_readable(GatheredColumn(table), torch.device("meta"))
    assert not is_readable(GatheredColumn([table, table]), cpu)
    assert not is_readable(GatheredColumn(table.bfloat16(), as_float32=True), cpu)
    assert not is_readable(GatheredColumn(table.int()), cpu)
    assert not is_readable(GatheredColumn(torch.randn(4)), cpu)
    copies = Copies(torch.zeros(4, dtype=torch.int32), table)
    assert not is_readable(GatheredColumn(table, copies=copies), cpu)


# Exact moments: the same bits in any order and grouping.


NUMBERS = st.lists(st.floats(allow_infinity=False, width=64) | st.floats(-10, 10), max_size=40)


@given(NUMBERS, st.randoms(use_true_random=False), st.integers(1, 9))
def test_neither_order_nor_grouping_changes_a_bit(numbers: list[float], random: object, step: int) -> None:
    moments = Moments.of(np.array(numbers, np.float64))
    exact = [Fraction(number) for number in numbers if number == number]
    mean = sum(exact, Fraction(0)) / max(len(exact), 1)
    variance = sum(((number - mean) ** 2 for number in exact), Fraction(0)) / max(len(exact), 1)
    with localcontext(prec=80):
        std = (Decimal(variance.numerator) / Decimal(variance.denominator)).sqrt()
    assert (moments.count, moments.mean(), moments.std()) == (len(exact), float(mean), float(std))
    random.shuffle(numbers)  # type: ignore[attr-defined]
    merged = Moments()
    for at in range(0, len(numbers), step):
        merged = merged.merged(Moments.of(np.array(numbers[at : at + step], np.float64)))
    assert merged == moments


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30))
def test_integers_are_summed_as_integers(numbers: list[int]) -> None:
    moments = Moments.of(np.array(numbers, np.int64))
    assert moments.total == sum(numbers)
    assert moments.squares == sum(number**2 for number in numbers)


@given(st.lists(st.floats(width=32, allow_infinity=False), max_size=30))
def test_float32_is_summed_as_its_double(numbers: list[float]) -> None:
    assert Moments.of(np.array(numbers, np.float32)) == Moments.of(np.array(numbers, np.float64))


def test_extremes_and_missing_numbers() -> None:
    moments = Moments.of(np.array([[2.0, np.nan], [-1.0, 5.0]]))
    assert (moments.count, moments.missing, moments.minimum, moments.maximum) == (3, 1, -1.0, 5.0)
    assert (Moments.of(np.array([np.nan])).mean(), Moments().std()) == (0.0, 0.0)
    assert Moments.of(np.array([True, False, True])).mean() == pytest.approx(2 / 3)
    assert Moments.of(np.array([7, 9], np.uint8)).std() == 1.0


def test_cancellation_loses_nothing() -> None:
    moments = Moments.of(np.array([1e300, 1.0, -1e300, 1e-300]))
    assert moments.mean() == 0.25
    assert Moments.of(np.array([1e15, 1e15 + 1])).std() == 0.5


@pytest.mark.parametrize("infinite", [np.inf, -np.inf])
def test_the_first_infinite_number_is_named(infinite: float) -> None:
    with pytest.raises(ValueError, match=f"number 1 is {infinite}: must be finite or NaN"):
        Moments.of(np.array([1.0, infinite, infinite]))
