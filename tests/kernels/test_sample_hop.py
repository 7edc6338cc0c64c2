from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from khop.draw import DrawKey, Neighbors
from khop.kernels.csc import Csc
from khop.kernels.draw_request import DrawRequest
from khop.kernels.edge_arrays import weight_sums
from khop.kernels.edge_times import HopRows
from khop.kernels.sample_hop import sample_hop
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted
from support.draws import rising, uniform_request, weighted_request

ROWS = 700
NODES = torch.arange(ROWS).flip(0)


def csc_of(degrees: list[int], dtype: torch.dtype) -> Csc:
    indptr = torch.tensor([0, *(degrees[row % len(degrees)] for row in range(ROWS))]).cumsum(0)
    return Csc(indptr, (torch.arange(int(indptr[-1])) * 13 % 1009).to(dtype))


def draws() -> list[DrawRequest]:
    """Narrow and wide indices, uniform and by weight, few, all and no neighbors, of one frontier."""
    narrow, wide = csc_of([0, 3, 9], torch.int32), csc_of([5, 1, 40, 2], torch.int64)
    sums = rising(narrow, weight_sums(narrow, torch.arange(narrow.num_edges) % 5.0))

    def rows(stream: int) -> HopRows:
        return HopRows(NODES, DrawKey(3), stream)

    return [
        uniform_request(narrow, rows(1), 3, Uniform()),
        uniform_request(wide, rows(2), 4, Uniform(replacement=True)),
        weighted_request(narrow, sums, rows(3), 2, Weighted("w")),
        uniform_request(wide, rows(4), 0, Uniform()),
        uniform_request(wide, rows(5), -1, Uniform()),
        uniform_request(narrow, rows(6), 70, Uniform()),
    ]


def parts(neighbors: Neighbors) -> tuple[torch.dtype, list[int], list[int], list[int] | None]:
    edges = None if neighbors.edges is None else neighbors.edges.tolist()
    return neighbors.nodes.dtype, neighbors.offsets.tolist(), neighbors.nodes.tolist(), edges


@pytest.mark.parametrize("edge_ids", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_edge_types_drawn_together_are_as_each_drawn_alone(edge_ids: bool, threads: int) -> None:
    together = sample_hop(draws(), edge_ids=edge_ids, threads=threads)
    alone = [sample_hop([draw], edge_ids=edge_ids)[0] for draw in draws()]
    assert [parts(found) for found in together] == [parts(found) for found in alone]


def test_a_fanout_of_zero_gives_empty_rows_and_reads_nothing_of_the_graph() -> None:
    damaged = Csc(torch.tensor([0, 10**9, 3]), torch.zeros(3, dtype=torch.int32))
    (found,) = sample_hop(
        [uniform_request(damaged, HopRows(torch.tensor([0, 1, 1]), DrawKey(0), 1), 0, Uniform())],
        edge_ids=True,
    )
    assert parts(found) == (torch.int32, [0, 0, 0, 0], [], [])


def test_nothing_to_draw_is_nothing() -> None:
    assert sample_hop([], edge_ids=False) == []


def test_operands_that_do_not_fit_are_refused() -> None:
    csc = Csc(torch.tensor([0, 2, 2, 5]), torch.tensor([0, 1, 2, 0, 1]), 3)
    rows = HopRows(torch.tensor([2, 0, 2]), DrawKey(1), stream=7)
    for wrong in (-2, 1 << 31):
        with pytest.raises(ValueError, match=f"fanout {wrong}: must be from 0"):
            sample_hop([uniform_request(csc, rows, wrong, Uniform())], edge_ids=False)
    for name, values in (
        ("nodes", torch.tensor([1.0])),
        ("original_ids", torch.tensor([1])),
        ("tree", torch.tensor([1, 2])),
        ("ranges", torch.tensor([0, 1, 0])),
    ):
        wrong_rows = replace(rows, **{name: values})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=f"{name} is torch"):
            sample_hop([uniform_request(csc, wrong_rows, 2, Uniform())], edge_ids=False)
