"""Slots become the arrays that the CPU core gives: rows without gaps, tail rows without edges."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import khop.kernels.triton.transpose as triton_transpose
from khop.kernels.csc import Csc
from khop.kernels.segment import transpose, transpose_reference
from khop.kernels.triton.expansion_csr import Expanded, expansion_csr
from khop.kernels.triton.launch import launch
from khop.kernels.triton.rows import Slots
from khop.kernels.triton.to_csr import BLOCK, CsrBuffers, OutputPlace, num_row_blocks, row_sums, to_csr
from khop.kernels.triton.transpose import AHEAD, EDGES, RUN, put_in_order
from support.examples import few
from support.triton_rows import DEVICE
from support.triton_segments import FEW, Edges, by_triton, some_edges

BASE = 1000


def to_csr_reference(local: Tensor, counts: Tensor, fanout: int) -> tuple[Tensor, Tensor]:
    """Return indptr, int64, and indices, int32, of local ids in slots: row after row, the first counts[r]."""
    indptr = torch.cat([counts.new_zeros(1, dtype=torch.int64), counts.long().cumsum(0)])
    taken = torch.arange(fanout, device=counts.device) < counts[:, None]
    return indptr, local.view(counts.numel(), fanout)[taken].int()


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


def write(drawn: Slots, table: Tensor, place: OutputPlace, out: CsrBuffers) -> None:
    sums = torch.full((num_row_blocks(drawn.counts.numel()),), -7, dtype=torch.int32, device=DEVICE)
    row_sums(drawn.counts, sums)
    to_csr(drawn, sums, table, BASE * 1000, place, out)


@pytest.mark.long
@settings(max_examples=few(4))
@given(
    rows=st.integers(0, 40),
    behind=st.integers(0, 9),
    fanout=st.sampled_from([0, 1, 2, 5, 33, 70]),
    seed=st.integers(0, 99),
)
def test_the_arrays_are_the_references(rows: int, behind: int, fanout: int, seed: int) -> None:
    capacity = max(1, rows + behind)
    drawn = drawn_rows(rows, fanout, capacity, seed)
    local = torch.randint(10**6, (capacity * fanout,), generator=torch.Generator().manual_seed(seed)).to(
        DEVICE
    )
    out, edges = buffers(capacity, capacity * fanout), number(-7)
    write(drawn, table_of(local), OutputPlace(number(), number(), edges), out)
    indptr, indices = to_csr_reference(local[drawn.ids], drawn.counts, fanout)
    total = indices.numel()
    assert torch.equal(out.indptr, indptr)
    assert edges.item() == total
    assert torch.equal(out.indices[:total], indices)
    assert drawn.edges is not None
    assert out.edge_ids is not None
    kept = torch.arange(fanout, device=DEVICE) < drawn.counts[:, None]
    assert torch.equal(out.edge_ids[:total], drawn.edges.view(capacity, fanout)[kept])
    assert (out.indices[total:] == -7).all()


def test_many_blocks_of_rows_follow_each_other() -> None:
    rows, fanout = 3 * BLOCK + 5, 2
    drawn = drawn_rows(rows, fanout, rows + BLOCK)
    local = torch.arange(drawn.ids.numel(), device=DEVICE) % BASE
    out, edges = buffers(drawn.counts.numel(), drawn.ids.numel()), number()
    write(drawn, table_of(local), OutputPlace(number(), number(), edges), out)
    indptr, indices = to_csr_reference(local[drawn.ids], drawn.counts, fanout)
    assert torch.equal(out.indptr, indptr)
    assert torch.equal(out.indices[: edges.item()], indices)


def test_hops_join_into_one_graph_with_rows_between_them_empty() -> None:
    """Rows 0 and 1 of the first hop, row 3 of the second; nothing draws from row 2."""
    table = table_of(torch.arange(10, device=DEVICE))
    out, edges = buffers(5, 8), [number(), number(-7), number(-7)]
    first = slots([4, 5, 6, -1, -1, -1], [2, 1, 0])
    second = slots([7, -1], [1, 0])
    write(first, table, OutputPlace(number(0), edges[0], edges[1]), out)
    assert out.indptr.tolist() == [0, 2, 3, 3, 3, 3]
    write(second, table, OutputPlace(number(3), edges[1], edges[2]), out)
    assert out.indptr.tolist() == [0, 2, 3, 3, 4, 4]
    assert out.indices.tolist() == [4, 5, 6, 7, -7, -7, -7, -7]
    assert (edges[1].item(), edges[2].item()) == (3, 4)


def test_ids_without_a_local_id_become_a_safe_row() -> None:
    out, edges = buffers(1, 1), number()
    drawn, table = slots([0], [1]), table_of(torch.tensor([BASE * 1000 + 4], device=DEVICE))
    write(drawn, table, OutputPlace(number(), number(), edges), out)
    assert out.indices.tolist() == [0]


def test_more_edges_than_int32_counts_are_refused() -> None:
    drawn = drawn_rows(1, 1, 1)
    out = CsrBuffers(torch.zeros(2, dtype=torch.int64), torch.empty(2**31, dtype=torch.int32, device="meta"))
    with pytest.raises(ValueError, match="sample fewer neighbors"):
        to_csr(drawn, number(), drawn.ids, 0, OutputPlace(number(), number(), number()), out)


# Edges turned around by Triton are those of the CPU core.


UNUSED = 1 << 30  # index behind the last edge: nothing may read it


def assert_same(found: Csc, expected: Csc) -> None:
    assert torch.equal(found.indptr.cpu(), expected.indptr)
    assert torch.equal(found.indices.cpu()[: expected.indices.numel()], expected.indices)


@FEW
@given(edges=some_edges(widths=(1,)))
def test_rows_of_each_source_are_in_edge_order_and_indices_behind_the_last_edge_are_ignored(
    edges: Edges,
) -> None:
    expected = transpose(edges.indptr, edges.indices, edges.num_sources)
    indices = torch.cat([edges.indices, edges.indices.new_full((5,), UNUSED)])
    assert_same(transpose_reference(edges.indptr, indices, edges.num_sources), expected)
    with by_triton():
        found = transpose(edges.indptr.to(DEVICE), indices.to(DEVICE), edges.num_sources)
    assert_same(found, expected)


@pytest.mark.long
def test_more_edges_than_a_program_has() -> None:
    indptr = torch.arange(0, 3 * EDGES + 1, 2)
    indices = torch.randint(7, (3 * EDGES,), dtype=torch.int32, generator=torch.Generator().manual_seed(1))
    with by_triton():
        found = transpose(indptr.to(DEVICE), indices.to(DEVICE), 7)
    assert_same(found, transpose(indptr, indices, 7))


def test_the_order_in_which_edges_arrive_in_a_list_does_not_matter() -> None:
    indptr, indices = torch.tensor([0, 3, 3, 7]), torch.tensor([1, 0, 1, 1, 0, 1, 1], dtype=torch.int32)
    expected = transpose(indptr, indices, 2)
    listed = torch.tensor([4, 1, 5, 0, 6, 3, 2], dtype=torch.int32, device=DEVICE)
    rows = torch.full((7,), -1, dtype=torch.int32, device=DEVICE)
    turned = expected.indptr.to(DEVICE)
    operands = (indptr.to(DEVICE), indices.to(DEVICE), turned, listed, listed.clone(), rows)
    launch(put_in_order, 1, rows, *operands, 3, 7, AHEAD=AHEAD, RUN=8, EDGES=8)  # no source is a hub
    assert_same(Csc(turned, rows), expected)


@contextmanager
def short_runs(run: int, runs: int, at_once: int, programs: int) -> Iterator[None]:
    """Sources with few edges are hubs, and few runs are merged at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_transpose, "RUN", run)
        patch.setattr(triton_transpose, "RUNS", runs)
        patch.setattr(triton_transpose, "AT_ONCE", at_once)
        patch.setattr(triton_transpose, "MOST_PROGRAMS", programs)
        yield


@settings(max_examples=few(6))
@given(
    degrees=st.lists(st.sampled_from([0, 1, 3, 4, 5, 15, 16, 17, 70]), min_size=1, max_size=5),
    shape=st.sampled_from([(4, 2, 2), (4, 4, 2), (8, 8, 8), (2, 2, 1)]),
    programs=st.sampled_from([1, 3]),
    seed=st.integers(0, 99),
)
def test_the_edges_of_hubs_are_sorted_in_runs_that_are_merged(
    degrees: list[int], shape: tuple[int, int, int], programs: int, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    sources = torch.arange(len(degrees)).repeat_interleave(torch.tensor(degrees))
    indices = sources[torch.randperm(sources.numel(), generator=random)].int()
    ends = torch.randint(indices.numel() + 1, (6,), generator=random).sort().values
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), ends])
    expected = transpose(indptr, indices[: int(ends[-1])], len(degrees))
    with by_triton(), short_runs(*shape, programs):
        found = transpose(indptr.to(DEVICE), indices.to(DEVICE), len(degrees))
    assert_same(found, expected)


@pytest.mark.long
def test_a_hub_has_more_edges_than_runs_are_merged_at_once() -> None:
    """3 of 4 edges are a hub's, in runs of the usual length."""
    edges = 3 * RUN
    indices = torch.zeros(edges, dtype=torch.int32)
    indices[::4] = torch.arange(edges // 4, dtype=torch.int32) % 50
    indptr = torch.arange(0, edges + 1, 3)
    with by_triton(), short_runs(RUN, 2, 2, 1024):
        found = transpose(indptr.to(DEVICE), indices.to(DEVICE), 50)
    assert_same(found, transpose(indptr, indices, 50))


# Expansions as CSR arrays: empty places leave no gap, and rows behind the last one have no edges.


BASE_EXPANSION_CSR, NODES = 5000, 1200
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
    place = OutputPlace(count(first), count(first), count(-7))
    drawn = Expanded.of(keys.to(dtype).to(DEVICE), offsets.to(DEVICE), positions)
    expansion_csr(drawn, table(), BASE_EXPANSION_CSR, place, out)
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
    expansion_csr(
        drawn,
        table() - BASE_EXPANSION_CSR,
        BASE_EXPANSION_CSR,
        OutputPlace(count(0), count(0), count(0)),
        out,
    )
    assert out.indices.tolist() == [0]
