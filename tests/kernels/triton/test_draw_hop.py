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
from khop.kernels.draw_request import DrawRequest
from khop.kernels.edge_arrays import weight_sums
from khop.kernels.edge_times import EdgeTimes, HopRows, Rising
from khop.kernels.sample_hop import sample_hop
from khop.kernels.time_ranges import time_ranges
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted
from support.draws import rising, uniform_request, weighted_request
from support.triton_rows import DEVICE, csc_on_device, on_device


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
