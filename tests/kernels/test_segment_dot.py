"""Dot products over edges equal plain torch, with their gradients, on any number of threads."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.kernels.segment_attention import segment_dot, segment_dot_reference


def operands(seed: int, rows: int, sources: int, edges: int, width: int) -> tuple[Tensor, ...]:
    random = torch.Generator().manual_seed(seed)
    cuts = torch.randint(edges + 1, (max(rows - 1, 0),), generator=random).sort().values
    ends = [torch.tensor([0]), cuts, torch.tensor([edges])] if rows else [torch.tensor([0])]
    x = torch.randn(sources, width, generator=random, dtype=torch.float64)
    at = torch.randn(rows, width, generator=random, dtype=torch.float64)
    indices = torch.randint(max(sources, 1), (edges if rows else 0,), generator=random, dtype=torch.int32)
    return x, at, torch.cat(ends), indices


SIZES = tuple(st.integers(*ends) for ends in ((0, 99), (0, 9), (1, 9), (0, 40)))


@given(*SIZES, st.sampled_from([1, 2, 3]))
def test_values_and_gradients_are_those_of_the_reference(
    seed: int, rows: int, sources: int, edges: int, heads: int
) -> None:
    x, at, indptr, indices = operands(seed, rows, sources, edges, 6)
    results = []
    for function in (segment_dot, segment_dot_reference):
        given_x, given_at = x.clone().requires_grad_(), at.clone().requires_grad_()
        out = function(given_x, given_at, heads, indptr, indices)
        results.append((out.detach(), *torch.autograd.grad(out.sin().sum(), (given_x, given_at))))
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    x, at, indptr, indices = operands(1, 500, 400, 5000, 32)
    before, found = torch.get_num_threads(), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        given_x, given_at = x.float().requires_grad_(), at.float().requires_grad_()
        out = segment_dot(given_x, given_at, 4, indptr, indices)
        found.append((out.detach(), *torch.autograd.grad(out.sin().sum(), (given_x, given_at))))
    torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 4}, "heads 4: must divide the 6 columns of x"),
        ({"rows": torch.zeros(3, 6)}, "rows are torch.float32"),
        ({"rows": torch.zeros(2, 6, dtype=torch.float64)}, "must be torch.float64"),
    ],
)
def test_operands_that_do_not_fit_are_named(change: dict[str, object], message: str) -> None:
    x, at, indptr, indices = operands(1, 3, 4, 9, 6)
    fitting = {"x": x, "rows": at, "heads": 2, "indptr": indptr, "indices": indices}
    with pytest.raises(ValueError, match=message):
        segment_dot(**{**fitting, **change})  # type: ignore[arg-type]
