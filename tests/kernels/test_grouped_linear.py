"""Products by group equal the products row by row, forward and backward."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.linear import TILE, grouped_linear, grouped_linear_reference


@given(
    groups=st.lists(st.integers(0, 4), max_size=3 * TILE),
    count=st.integers(5, 7),
)
def test_each_row_is_multiplied_by_the_matrix_of_its_group(groups: list[int], count: int) -> None:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(len(groups), 3, generator=random, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(count, 4, 3, generator=random, dtype=torch.float64, requires_grad=True)
    of = torch.tensor(groups, dtype=torch.int64)
    found, expected = grouped_linear(x, weights, of), grouped_linear_reference(x, weights, of)
    torch.testing.assert_close(found, expected)
    upstream = torch.randn(found.shape, generator=random, dtype=torch.float64)
    ours = torch.autograd.grad(found, (x, weights), upstream)
    theirs = torch.autograd.grad(expected, (x, weights), upstream)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
