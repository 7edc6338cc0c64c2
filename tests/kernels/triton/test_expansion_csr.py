"""Expansions as CSR arrays: empty places leave no gap, and rows behind the last one have no edges."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from khop.kernels.triton.expansion_csr import Expanded, expansion_csr
from khop.kernels.triton.to_csr import CsrBuffers, Place
from support.triton_rows import DEVICE

BASE, NODES = 5000, 1200
LOCAL = torch.arange(NODES).flip(0)  # of each node


def table() -> Tensor:
    return ((1 << 32) | ((1 << 31) - 1 - LOCAL)).to(DEVICE)


def count(value: int) -> Tensor:
    return torch.tensor([value], dtype=torch.int32, device=DEVICE)


def expected(keys: Tensor, offsets: Tensor, edges_before: int) -> tuple[list[int], list[int], list[int]]:
    """Ends of the rows, local ids, and positions of the edges that are there."""
    kept = keys >= 0
    ends = [edges_before + int(kept[:end].sum()) for end in offsets.clamp(max=keys.numel()).tolist()]
    return ends, LOCAL[keys[kept].long()].tolist(), torch.arange(keys.numel())[kept].tolist()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("room", "rows"), [(1, 1), (512, 3), (1100, 700)])
@pytest.mark.parametrize("first", [0, 4])
def test_the_arrays_are_those_of_the_edges_that_are_there(
    room: int, rows: int, first: int, dtype: torch.dtype
) -> None:
    """`first` rows with an edge each come before those of the hop; 2 rows follow, and 3 places are unused."""
    random = torch.Generator().manual_seed(room + rows)
    lengths = torch.randint(0, 2 * room // rows + 1, (rows,), generator=random)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    keys = torch.randint(-1, NODES, (room,), generator=random)
    keys[torch.randint(room, (room // 3,), generator=random)] = -1
    keys[int(offsets[-1].clamp(max=room)) :] = -1
    ends, indices, edges = expected(keys, offsets, first)
    out = CsrBuffers(
        torch.full((first + rows + 3,), -7, device=DEVICE),
        torch.full((first + room,), -7, dtype=torch.int32, device=DEVICE),
        torch.full((first + room,), -7, device=DEVICE),
    )
    positions = torch.arange(room, device=DEVICE)
    place = Place(count(first), count(first), count(-7))
    drawn = Expanded.of(keys.to(dtype).to(DEVICE), offsets.to(DEVICE), positions)
    expansion_csr(drawn, table(), BASE, place, out)
    assert out.edge_ids is not None
    assert out.indptr[first + (first > 0) :].tolist() == [*ends[first > 0 :], ends[-1], ends[-1]]
    assert out.indices[first : first + len(indices)].tolist() == indices
    assert out.edge_ids[first : first + len(edges)].tolist() == edges
    assert (out.indices[:first] == -7).all()
    assert (out.indices[first + len(indices) :] == -7).all()
    assert place.edges.tolist() == [ends[-1]]


def test_nodes_beyond_a_capacity_have_row_0() -> None:
    out = CsrBuffers(torch.zeros(2, dtype=torch.int64, device=DEVICE), count(-7))
    drawn = Expanded.of(torch.tensor([NODES - 1], device=DEVICE), torch.tensor([0, 1], device=DEVICE), None)
    expansion_csr(drawn, table() - BASE, BASE, Place(count(0), count(0), count(0)), out)
    assert out.indices.tolist() == [0]
