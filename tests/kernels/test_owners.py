"""Rows are shared out by owner without comparing them, and what owners drew is put in order in one pass."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.kernels.owners import (
    Drawn,
    join_drawn,
    join_drawn_reference,
    owner_order,
    owner_order_reference,
)

BOUNDS = st.sampled_from([[0, 50], [0, 20, 20, 35, 50], [0, 0, 50], [0, *range(3, 50, 2), 50]])


def drawn_by(counts: tuple[int, ...], dtypes: list[torch.dtype], seed: int, with_edges: bool) -> list[Drawn]:
    random = torch.Generator().manual_seed(seed)
    found: list[Drawn] = []
    for number, count in enumerate(counts):
        degrees = torch.randint(4, (count,), generator=random)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
        nodes = torch.randint(1000, (int(offsets[-1]),), generator=random)
        edges: Tensor | None = nodes * 7 if with_edges else None
        found.append((offsets, nodes.to(dtypes[number % len(dtypes)]), edges))
    return found


@given(
    ids=st.lists(st.integers(0, 49), max_size=60) | st.lists(st.integers(0, 49), max_size=60).map(sorted),
    bounds=BOUNDS,
    dtypes=st.sampled_from([[torch.int32], [torch.int64], [torch.int32, torch.int64]]),
    with_edges=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_shares_and_what_is_joined_are_those_of_the_reference(
    ids: list[int], bounds: list[int], dtypes: list[torch.dtype], with_edges: bool, seed: int
) -> None:
    wanted = torch.tensor(ids, dtype=torch.int64)
    counts, order = owner_order(wanted, bounds)
    as_reference = owner_order_reference(wanted, bounds)
    assert counts == as_reference[0]
    assert (order is None) == (as_reference[1] is None)
    if order is not None and as_reference[1] is not None:
        assert torch.equal(order, as_reference[1])
    drawn = drawn_by(counts, dtypes, seed, with_edges)
    offsets, nodes, edges = join_drawn(drawn, order)
    expected = join_drawn_reference(drawn, order)
    assert torch.equal(offsets, expected[0])
    assert nodes.dtype == expected[1].dtype
    assert torch.equal(nodes, expected[1])
    assert (edges is None) == (not with_edges)
    if edges is not None and expected[2] is not None:
        assert torch.equal(edges, expected[2])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ids_of_any_width_are_shared_out(dtype: torch.dtype) -> None:
    counts, order = owner_order(torch.tensor([30, 2, 31], dtype=dtype), [0, 10, 40])
    assert counts == (1, 2)
    assert order is not None
    assert order.tolist() == [1, 0, 2]
