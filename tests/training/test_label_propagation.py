"""Label propagation is the weighted mean over in-neighbors, as a loop over edges computes it."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.training.label_propagation import propagated


@given(st.integers(0, 2**31), st.integers(0, 4))
def test_rows_are_those_of_a_loop_over_edges(seed: int, rounds: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    nodes = 7
    edges, lists = [], []
    for _ in range(2):
        degrees = torch.randint(4, (nodes,), generator=draw)
        indptr = torch.nn.functional.pad(degrees.cumsum(0), (1, 0))
        indices = torch.randint(nodes, (int(indptr[-1]),), generator=draw)
        edges.append((indptr, indices))
        lists.append([indices[indptr[i] : indptr[i + 1]].tolist() for i in range(nodes)])
    values = torch.randn(nodes, 2, generator=draw)
    known = torch.rand(nodes, generator=draw) < 0.4
    state = [(values[i].double(), 1.0) if known[i] else (torch.zeros(2).double(), 0.0) for i in range(nodes)]
    start = list(state)
    for _ in range(rounds):
        following = []
        for i in range(nodes):
            near = [state[j] for of_type in lists for j in of_type[i]]
            count = max(1, len(near))
            rows = sum((row for row, _ in near), torch.zeros(2).double()) / count
            following.append(start[i] if known[i] else (rows, sum(mass for _, mass in near) / count))
        state = following
    found, reached = propagated(edges, values, known, rounds)
    assert reached.tolist() == [mass > 0 for _, mass in state]
    for i, (row, mass) in enumerate(state):
        if mass > 0:
            torch.testing.assert_close(found[i], row / mass)
