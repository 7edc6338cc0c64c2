"""Operations that choose Triton give the results of the CPU core, as exact arrays."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from khop.draw import DrawKey, Neighbors
from khop.kernels.choice import Engine, forcing
from khop.kernels.csc import Csc
from khop.kernels.draw_negatives import Candidates, NegativeDraw, NothingLeft, Partners, draw_negatives
from khop.kernels.draw_request import DrawRequest, time_ranges
from khop.kernels.edge_arrays import weight_sums
from khop.kernels.edge_times import EdgeTimes, HopRows, Rising
from khop.kernels.sample_hop import sample_hop
from khop.kernels.triton.all_neighbors import AllNeighbors, EdgeTrees, Omitted, all_neighbors
from khop.kernels.triton.exclude_edges import ExcludedPairs, pairs_of
from khop.kernels.triton.node_table import Overflow
from khop.kernels.triton.rows import Marks
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted
from support.draws import rising, sample_uniform, uniform_request, weighted_request
from support.triton_rows import DEVICE, assert_same, csc_on_device, on_device, rows_on_device


def csc_of(degrees: list[int], dtype: torch.dtype) -> Csc:
    indptr = torch.tensor([0, *(degrees[row % len(degrees)] for row in range(60))]).cumsum(0)
    return Csc(indptr, (torch.arange(int(indptr[-1])) * 13 % 1009).to(dtype))


NARROW, WIDE = csc_of([0, 3, 9], torch.int32), csc_of([5, 1, 40, 2], torch.int64)
SUMS = rising(NARROW, weight_sums(NARROW, torch.arange(NARROW.num_edges) % 5.0))
NODES = torch.arange(60).flip(0)


def requests(nodes: Tensor = NODES) -> list[DrawRequest]:
    """Narrow and wide indices, uniform and by weight, few, all and no neighbors, of one frontier."""

    def rows(stream: int) -> HopRows:
        return HopRows(nodes, DrawKey(3), stream)

    weighted = Weighted("w")
    return [
        uniform_request(NARROW, rows(1), 3, Uniform()),
        uniform_request(WIDE, rows(2), 4, Uniform(replacement=True)),
        weighted_request(NARROW, SUMS, rows(3), 2, weighted),
        weighted_request(NARROW, SUMS, rows(3), -1, weighted),
        uniform_request(WIDE, rows(4), 0, Uniform()),
        uniform_request(WIDE, rows(5), -1, Uniform()),
        uniform_request(NARROW, rows(6), 70, Uniform()),
        uniform_request(NARROW, rows(6), 1 << 20, Uniform()),  # more than the kernels draw
    ]


def moved(request: DrawRequest) -> DrawRequest:
    rows = replace(request.rows, nodes=request.rows.nodes.to(DEVICE))
    sums = request.sums
    if sums is not None:
        sums = Rising(sums.values.to(DEVICE), sums.outline.to(DEVICE))
    return replace(request, csc=csc_on_device(request.csc), rows=rows, sums=sums)


def parts(found: Neighbors) -> tuple[torch.dtype, list[int], list[int], list[int] | None]:
    edges = None if found.edges is None else found.edges.tolist()
    return found.nodes.dtype, found.offsets.tolist(), found.nodes.tolist(), edges


@pytest.mark.core(1)
@pytest.mark.parametrize("edge_ids", [False, True])
@pytest.mark.parametrize("count", [60, 1, 0])
def test_draws_of_a_hop_are_those_of_the_core(count: int, edge_ids: bool) -> None:
    asked = requests(NODES[:count])
    expected = sample_hop(asked, edge_ids=edge_ids)
    with forcing(Engine.TRITON):
        found = sample_hop([moved(request) for request in asked], edge_ids=edge_ids)
    assert [parts(each) for each in found] == [parts(each) for each in expected]


@pytest.mark.parametrize("node", [-1, 60])
def test_a_node_that_is_no_row_is_named(node: int) -> None:
    asked = requests(torch.tensor([3, node]))
    for request in (asked[0], asked[2], asked[5]):
        message = rf"frontier node {node}: not in \[0, 60\), the rows of the graph"
        with forcing(Engine.TRITON), pytest.raises(ValueError, match=message):
            sample_hop([moved(request)], edge_ids=False)


@pytest.mark.parametrize("window", [None, (40, -2)])
def test_time_ranges_are_those_of_the_core(window: tuple[int, int] | None) -> None:
    of_rows = (torch.arange(WIDE.num_edges) * 7 % 200).split(WIDE.indptr.diff().tolist())
    times = torch.cat([row.sort().values for row in of_rows])
    until = torch.arange(60) * 17 % 210
    expected = time_ranges(WIDE, rising(WIDE, times), NODES, until, window)
    given = rising(WIDE, times)
    on = Rising(given.values.to(DEVICE), given.outline.to(DEVICE))
    own = EdgeTimes(on_device(times))
    with forcing(Engine.TRITON):
        found = time_ranges(csc_on_device(WIDE), on, NODES.to(DEVICE), until.to(DEVICE), window, own=own)
    assert torch.equal(found.cpu(), expected)


CANDIDATES = Candidates(1009)
PARTNERS = Partners(Csc(torch.tensor([0, 3, 3, 5]), torch.tensor([4, 5, 900, 1, 2])))


def negatives(sources: list[int], limits: list[int]) -> Tensor | NothingLeft:
    on = Partners(csc_on_device(PARTNERS.ranks))
    positions = torch.arange(len(sources), device=DEVICE)
    with forcing(Engine.TRITON):
        return draw_negatives(
            NegativeDraw(
                CANDIDATES,
                on,
                torch.tensor(sources, device=DEVICE, dtype=torch.int64),
                positions,
                3,
                DrawKey(5),
                9,
                limits=torch.tensor(limits, device=DEVICE, dtype=torch.int64),
            )
        )


def test_negatives_are_those_of_the_core() -> None:
    sources, limits = [0, 1, 2, 0], [7, 1009, 900, 6]
    given = torch.tensor(sources)
    expected = draw_negatives(
        NegativeDraw(
            CANDIDATES, PARTNERS, given, torch.arange(4), 3, DrawKey(5), 9, limits=torch.tensor(limits)
        )
    )
    assert negatives(sources, limits).tolist() == expected.tolist()
    assert negatives([], []).shape == (0, 3)
    assert negatives([0, 2, 1], [1009, 3, 0]) == NothingLeft(2)


@pytest.mark.parametrize(
    ("sources", "limits", "message"),
    [
        ([0, 3], [5, 5], "sources from 0 to 3: must be from 0 to 2"),
        ([-1, 0], [5, 5], "sources from -1 to 0: must be from 0 to 2"),
        ([0, 1], [2000, 5], "limits from 5 to 2000: must be from 0 to 1009"),
    ],
)
def test_operands_of_negatives_out_of_range_are_named(
    sources: list[int], limits: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        negatives(sources, limits)


# All neighbors, expanded by Triton, are those of the CPU core.


def graph(degrees: list[int], dtype: torch.dtype = torch.int32) -> Csc:
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    return Csc(indptr, (torch.arange(int(indptr[-1])) * 31 % 1009).to(dtype))


CSC = graph([0, 1, 3, 0, 700, 2, 5, 1])


def expansion(capacity: int, room: int, dtype: torch.dtype = torch.int32) -> AllNeighbors:
    return AllNeighbors(
        torch.full((capacity + 1,), -77, device=DEVICE),
        torch.full((room,), -77, dtype=dtype, device=DEVICE),
        torch.full((room,), -77, device=DEVICE),
        overflow=Overflow(torch.zeros(1, dtype=torch.int64, device=DEVICE), torch.tensor([9], device=DEVICE)),
    )


def rows_of(nodes: Tensor) -> HopRows:
    return HopRows(nodes, DrawKey(0), 0)


def expanded(csc: Csc, rows: HopRows, room: int) -> tuple[Neighbors, AllNeighbors]:
    of_device = rows_on_device(rows)
    out = expansion(of_device.capacity, room, csc.indices.dtype)
    all_neighbors(csc_on_device(csc), of_device, out)
    count = rows.nodes.numel()
    total = int(out.offsets[count])
    assert out.offsets[count:].tolist() == [total] * (of_device.capacity + 1 - count)
    assert out.ids[total:].tolist() == [-1] * max(0, room - total)
    return Neighbors(out.offsets[: count + 1].cpu(), out.ids[:total].cpu(), out.edges[:total].cpu()), out


@pytest.mark.core(2)
@pytest.mark.parametrize("count", [0, 1, 7, 600])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_give_all_edges_in_order(count: int, dtype: torch.dtype) -> None:
    csc = graph([0, 1, 3, 0, 90, 2, 5, 1], dtype)
    rows = rows_of(torch.arange(count) * 5 % 8)
    expected = sample_uniform(csc, rows, -1, Uniform(), edge_ids=True)
    found, out = expanded(csc, rows, expected.nodes.numel() + 4)
    assert_same(found, expected)
    assert out.overflow.flag.tolist() == [0]


def test_ranges_limit_the_edges() -> None:
    nodes = torch.tensor([4, 6, 4, 0])
    rows = replace(rows_of(nodes), ranges=torch.tensor([104, 204, 707, 708, 300, 300, 0, 0]))
    found, _ = expanded(CSC, rows, 101)
    assert_same(found, sample_uniform(CSC, rows, -1, Uniform(), edge_ids=True))


def test_edges_beyond_the_room_flag_the_batch_and_leave_true_offsets() -> None:
    rows = rows_of(torch.tensor([2, 4, 6]))
    expected = sample_uniform(CSC, rows, -1, Uniform(), edge_ids=True)
    _, out = expanded(CSC, rows, 100)
    assert out.overflow.flag.tolist() == [9]
    assert out.offsets[:4].tolist() == expected.offsets.tolist()
    assert out.ids.cpu().tolist() == expected.nodes[:100].tolist()


def test_the_first_position_of_each_source_is_marked() -> None:
    rows = rows_on_device(rows_of(torch.tensor([4, 2, 4])))
    out = expansion(rows.capacity, 1500)
    table = torch.zeros(1009, dtype=torch.int64, device=DEVICE)
    all_neighbors(csc_on_device(CSC), rows, out, Marks(table, torch.tensor([9], device=DEVICE), 50))
    ids = out.ids.tolist()
    expected = {node: (9 << 32) | ((1 << 31) - 1 - 50 - ids.index(node)) for node in ids if node >= 0}
    assert table.tolist() == [expected.get(node, 0) for node in range(1009)]


def test_omitted_edges_leave_empty_places() -> None:
    csc, nodes = graph([2, 4, 3]), torch.tensor([1, 2, 0, 1])
    sums = torch.tensor([5, 5, 0, 0, 3, 4, 2, 2, 9])  # edges 1, 2, 3 and 7 weigh 0
    excluded = torch.stack([csc.indices[[4, 8]].long(), torch.tensor([1, 2])])
    omitted = Omitted(sums.to(DEVICE), ExcludedPairs(pairs_of(excluded, 1009).to(DEVICE), 1009))
    of_rows = torch.tensor([7, 8, 9, 7], device=DEVICE)
    trees = EdgeTrees(of_rows, torch.zeros(15, dtype=torch.int64, device=DEVICE))
    table = torch.zeros(1009, dtype=torch.int64, device=DEVICE)
    out, rows = (
        replace(expansion(4, 15), trees=trees, omitted=omitted),
        rows_on_device(rows_of(nodes), spare=0),
    )
    marks = Marks(table, torch.tensor([9], device=DEVICE), 50)
    all_neighbors(csc_on_device(csc), rows, out, marks)
    assert out.edges.tolist() == [-1, -1, -1, 5, 6, -1, -1, 0, -1, -1, -1, -1, 5, -1, -1]
    assert (out.ids >= 0).tolist() == (out.edges >= 0).tolist()
    assert trees.of_edges[:13].tolist() == [7] * 4 + [8] * 3 + [9] * 2 + [7] * 4
    assert (table > 0).nonzero().flatten().tolist() == sorted(csc.indices[[0, 5, 6]].tolist())
