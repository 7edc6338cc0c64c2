"""Drawn edges without some: the kernel, its torch reference and a comprehension give the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.draw import Neighbors
from khop.kernels.exclude_edges import exclude_edges, exclude_edges_reference

NODE = st.integers(0, 6)
ROWS = st.lists(st.tuples(NODE, st.lists(NODE, max_size=8)), max_size=12)
PAIRS = st.lists(st.tuples(NODE, NODE), max_size=20)


def drawn(
    rows: list[tuple[int, list[int]]], dtype: torch.dtype, edge_ids: bool, weights: bool
) -> tuple[Neighbors, Tensor]:
    sources = [source for _, row in rows for source in row]
    offsets = torch.tensor([0, *(len(row) for _, row in rows)]).cumsum(0)
    edges = torch.arange(100, 100 + len(sources)) if edge_ids else None
    nodes = torch.tensor([node for node, _ in rows], dtype=torch.int64)
    of_edges = torch.arange(len(sources)) / 4 if weights else None
    return Neighbors(offsets, torch.tensor(sources, dtype=dtype), edges, of_edges), nodes


def columns(pairs: list[tuple[int, int]]) -> Tensor:
    return torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T


@given(
    rows=ROWS,
    pairs=PAIRS,
    dtype=st.sampled_from([torch.int32, torch.int64]),
    edge_ids=st.booleans(),
    weights=st.booleans(),
)
def test_what_is_excluded_goes_and_the_rest_keeps_its_order(
    rows: list[tuple[int, list[int]]],
    pairs: list[tuple[int, int]],
    dtype: torch.dtype,
    edge_ids: bool,
    weights: bool,
) -> None:
    found, nodes = drawn(rows, dtype, edge_ids, weights)
    kept = [
        (row, source)
        for row, (node, row_of) in enumerate(rows)
        for source in row_of
        if (source, node) not in pairs
    ]
    ids = [
        100 + i
        for i, (node, source) in enumerate((n, s) for n, r in rows for s in r)
        if (source, node) not in pairs
    ]
    for kernel in (exclude_edges, exclude_edges_reference):
        left = kernel(found, nodes, columns(pairs))
        assert left.nodes.dtype == dtype
        assert left.nodes.tolist() == [source for _, source in kept]
        assert left.offsets.diff().tolist() == [sum(r == row for r, _ in kept) for row in range(len(rows))]
        assert (left.edges is None) == (not edge_ids)
        assert left.edges is None or left.edges.tolist() == ids
        assert (left.weights is None) == (not weights)
        assert left.weights is None or left.weights.tolist() == [(edge - 100) / 4 for edge in ids]


def test_ids_beyond_32_bits_are_distinguished() -> None:
    far = 1 << 40
    found = Neighbors(torch.tensor([0, 2]), torch.tensor([far, far + (1 << 32)]))
    left = exclude_edges(found, torch.tensor([far + 1]), torch.tensor([[far], [far + 1]]))
    assert left.nodes.tolist() == [far + (1 << 32)]


@pytest.mark.parametrize(
    ("rows", "excluded", "message"),
    [
        (torch.tensor([1]), torch.zeros(3, 2, dtype=torch.int64), r"excluded is torch.int64 \(3, 2\)"),
        (
            torch.tensor([1, 2]),
            torch.zeros(2, 0, dtype=torch.int64),
            r"rows are torch.int64 \(2,\): must be int64 \(1\)",
        ),
    ],
)
def test_operands_that_do_not_fit_are_named(rows: Tensor, excluded: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        exclude_edges(Neighbors(torch.tensor([0, 1]), torch.tensor([3])), rows, excluded)


def test_offsets_that_end_elsewhere_are_named() -> None:
    with pytest.raises(ValueError, match="offsets has 2 at position 1"):
        exclude_edges(
            Neighbors(torch.tensor([0, 2]), torch.tensor([3])), torch.tensor([1]), torch.zeros(2, 0).long()
        )
