"""Lazy rows: a subclass computes some operations in its own way, all others with dense rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from khop.kernels.lazy_rows import LazyRows


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
