from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from khop.draw import DrawKey
from khop.kernels.csc import Csc
from khop.kernels.draw_request import RowLimits
from khop.kernels.edge_times import HopRows
from khop.kernels.sample_hop import sample_hop
from khop.sampling.rules.uniform import Uniform
from support.draws import rising, uniform_request

CSC = Csc(torch.tensor([0, 4, 6]), torch.tensor([9, 8, 7, 6, 5, 4], dtype=torch.int32))
REQUEST = uniform_request(CSC, HopRows(torch.tensor([1, 0]), DrawKey(1), 2), 2, Uniform())


@pytest.mark.parametrize(
    ("window", "is_latest", "ranges"),
    [(None, False, [4, 5, 0, 3]), ((10, 0), False, [5, 5, 1, 3]), (None, True, [4, 5, 1, 3])],
)
def test_time_limits_become_ranges_of_edges(
    window: tuple[int, int] | None, is_latest: bool, ranges: list[int]
) -> None:
    times = rising(CSC, torch.tensor([10, 20, 30, 40, 10, 50]))
    limits = RowLimits(times, None, torch.tensor([25, 30]), window, is_latest)
    resolved = replace(REQUEST, limits=limits).resolved()
    assert resolved.rows.ranges is not None
    assert resolved.rows.ranges.tolist() == ranges
    assert resolved.fanout == (-1 if is_latest else 2)
    (found,) = sample_hop([replace(REQUEST, limits=limits)], edge_ids=True)
    (expected,) = sample_hop([resolved], edge_ids=True)
    assert torch.equal(found.nodes, expected.nodes)


def test_neighbors_are_the_sources_of_edges_row_after_row() -> None:
    found = REQUEST.neighbors(torch.tensor([1, 2]), torch.tensor([4, 0, 3]), torch.tensor([0.5, 1.0, 2.0]))
    assert found.offsets.tolist() == [0, 1, 3]
    assert found.nodes.tolist() == [5, 9, 6]
    assert found.weights is not None
    assert found.weights.tolist() == [0.5, 1.0, 2.0]
    REQUEST.check_drawn(found)
