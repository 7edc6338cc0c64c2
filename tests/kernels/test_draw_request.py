from __future__ import annotations

import torch

from draws import uniform_request
from khop.draw import DrawKey
from khop.kernels.csc import Csc
from khop.kernels.hop_rows import HopRows
from khop.kernels.sample_hop import sample_hop
from khop.rules.uniform import Uniform

CSC = Csc(torch.tensor([0, 4, 6]), torch.tensor([9, 8, 7, 6, 5, 4], dtype=torch.int32))
REQUEST = uniform_request(CSC, HopRows(torch.tensor([1, 0]), DrawKey(1), 2), 2, Uniform())


def test_a_draw_within_ranges_is_of_these_edges_alone() -> None:
    (found,) = sample_hop([REQUEST.within(torch.tensor([5, 6, 1, 3]), -1)], edge_ids=True)
    assert found.edges is not None
    assert found.edges.tolist() == [5, 1, 2]
    assert found.offsets.tolist() == [0, 1, 3]


def test_neighbors_are_the_sources_of_edges_row_after_row() -> None:
    found = REQUEST.neighbors(torch.tensor([1, 2]), torch.tensor([4, 0, 3]), torch.tensor([0.5, 1.0, 2.0]))
    assert found.offsets.tolist() == [0, 1, 3]
    assert found.nodes.tolist() == [5, 9, 6]
    assert found.weights is not None
    assert found.weights.tolist() == [0.5, 1.0, 2.0]
    REQUEST.check_drawn(found)
