"""Slots become the arrays that the CPU core gives: rows without gaps, tail rows without edges."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from khop.kernels.triton.rows import Slots
from khop.kernels.triton.to_csr import BLOCK, CsrBuffers, Place, num_row_blocks, row_sums, to_csr
from support.examples import few
from support.triton_rows import DEVICE

BASE = 1000


def to_csr_reference(local: Tensor, counts: Tensor, fanout: int) -> tuple[Tensor, Tensor]:
    """Return indptr, int64, and indices, int32, of local ids in slots: row after row, the first counts[r]."""
    indptr = torch.cat([counts.new_zeros(1, dtype=torch.int64), counts.long().cumsum(0)])
    taken = torch.arange(fanout, device=counts.device) < counts[:, None]
    return indptr, local.view(-1, fanout)[taken].int()


def number(count: int = 0) -> Tensor:
    return torch.tensor([count], dtype=torch.int32, device=DEVICE)


def table_of(local: Tensor) -> Tensor:
    """A stamped table whose entries give these local ids."""
    return (9 << 32) | (2**31 - 1 - local.long())


def drawn_rows(rows: int, fanout: int, capacity: int, seed: int = 0) -> Slots:
    """Random rows, of which the last are behind the frontier; every slot has a different id."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.zeros(capacity, dtype=torch.int32)
    counts[:rows] = torch.randint(fanout + 1, (rows,), generator=generator, dtype=torch.int32)
    ids = torch.randperm(capacity * fanout, generator=generator)
    ids.view(capacity, fanout)[torch.arange(fanout) >= counts[:, None]] = -1
    edges = torch.randint(10**10, ids.shape, generator=generator)
    return Slots(ids.to(DEVICE), counts.to(DEVICE), edges.to(DEVICE))


def buffers(rows: int, edges: int) -> CsrBuffers:
    indptr, edge_ids = (torch.full((size,), -7, device=DEVICE) for size in (rows + 1, edges))
    return CsrBuffers(indptr, torch.full((edges,), -7, dtype=torch.int32, device=DEVICE), edge_ids)


def slots(ids: list[int], counts: list[int]) -> Slots:
    return Slots(
        torch.tensor(ids, device=DEVICE),
        torch.tensor(counts, dtype=torch.int32, device=DEVICE),
        torch.arange(len(ids), device=DEVICE),
    )


def write(drawn: Slots, table: Tensor, place: Place, out: CsrBuffers) -> None:
    sums = torch.full((num_row_blocks(drawn.counts.numel()),), -7, dtype=torch.int32, device=DEVICE)
    row_sums(drawn.counts, sums)
    to_csr(drawn, sums, table, BASE * 1000, place, out)


@settings(max_examples=few(8))
@given(
    rows=st.integers(0, 40),
    behind=st.integers(0, 9),
    fanout=st.sampled_from([1, 2, 5, 33, 70]),
    seed=st.integers(0, 99),
)
def test_the_arrays_are_the_references(rows: int, behind: int, fanout: int, seed: int) -> None:
    capacity = max(1, rows + behind)
    drawn = drawn_rows(rows, fanout, capacity, seed)
    local = torch.randint(10**6, (capacity * fanout,), generator=torch.Generator().manual_seed(seed)).to(
        DEVICE
    )
    out, edges = buffers(capacity, capacity * fanout), number(-7)
    write(drawn, table_of(local), Place(number(), number(), edges), out)
    indptr, indices = to_csr_reference(local[drawn.ids], drawn.counts, fanout)
    total = indices.numel()
    assert torch.equal(out.indptr, indptr)
    assert edges.item() == total
    assert torch.equal(out.indices[:total], indices)
    assert drawn.edges is not None
    assert out.edge_ids is not None
    kept = torch.arange(fanout, device=DEVICE) < drawn.counts[:, None]
    assert torch.equal(out.edge_ids[:total], drawn.edges.view(-1, fanout)[kept])
    assert (out.indices[total:] == -7).all()


def test_many_blocks_of_rows_follow_each_other() -> None:
    rows, fanout = 3 * BLOCK + 5, 2
    drawn = drawn_rows(rows, fanout, rows + BLOCK)
    local = torch.arange(drawn.ids.numel(), device=DEVICE) % BASE
    out, edges = buffers(drawn.counts.numel(), drawn.ids.numel()), number()
    write(drawn, table_of(local), Place(number(), number(), edges), out)
    indptr, indices = to_csr_reference(local[drawn.ids], drawn.counts, fanout)
    assert torch.equal(out.indptr, indptr)
    assert torch.equal(out.indices[: edges.item()], indices)


def test_hops_join_into_one_graph_with_rows_between_them_empty() -> None:
    """Rows 0 and 1 of the first hop, row 3 of the second; nothing draws from row 2."""
    table = table_of(torch.arange(10, device=DEVICE))
    out, edges = buffers(5, 8), [number(), number(-7), number(-7)]
    first = slots([4, 5, 6, -1, -1, -1], [2, 1, 0])
    second = slots([7, -1], [1, 0])
    write(first, table, Place(number(0), edges[0], edges[1]), out)
    assert out.indptr.tolist() == [0, 2, 3, 3, 3, 3]
    write(second, table, Place(number(3), edges[1], edges[2]), out)
    assert out.indptr.tolist() == [0, 2, 3, 3, 4, 4]
    assert out.indices.tolist() == [4, 5, 6, 7, -7, -7, -7, -7]
    assert (edges[1].item(), edges[2].item()) == (3, 4)


def test_ids_without_a_local_id_become_a_safe_row() -> None:
    out, edges = buffers(1, 1), number()
    drawn, table = slots([0], [1]), table_of(torch.tensor([BASE * 1000 + 4], device=DEVICE))
    write(drawn, table, Place(number(), number(), edges), out)
    assert out.indices.tolist() == [0]


def test_more_edges_than_int32_counts_are_refused() -> None:
    drawn = drawn_rows(1, 1, 1)
    out = CsrBuffers(torch.zeros(2, dtype=torch.int64), torch.empty(2**31, dtype=torch.int32, device="meta"))
    with pytest.raises(ValueError, match="sample fewer neighbors"):
        to_csr(drawn, number(), drawn.ids, 0, Place(number(), number(), number()), out)
