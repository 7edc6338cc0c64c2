"""Label propagation: labels of training nodes averaged over neighbors, as a baseline without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from khop.kernels.segment import segment_sum

ROUNDS = 20


def propagated(
    edges: Sequence[tuple[Tensor, Tensor]],
    values: Tensor,
    known: Tensor,
    rounds: int = ROUNDS,
    joined: Callable[[Tensor], Tensor] = lambda rows: rows,
) -> tuple[Tensor, Tensor]:
    """Spread known rows along edges (Zhu and Ghahramani 2002); return rows, and True where one has arrived.

    `edges` are offsets and sources of each edge type by destination, (nodes + 1) and (edges). `values` are
    float (nodes, k), `known` bool (nodes). In each round a node takes the mean of its in-neighbors, weighted
    by the share of known rows that has arrived there; known rows stay. Returns float64 (nodes, k) and bool
    (nodes).

    Where ranks hold the edges in parts, `edges` lead to the nodes here, and `joined` takes float64
    (nodes here, k + 1) and returns the rows of all nodes.
    """
    mass = known.double().unsqueeze(1)
    start = torch.cat([torch.where(known.unsqueeze(1), values.double(), 0.0), mass], dim=1)
    degrees = torch.stack([indptr.diff() for indptr, _ in edges]).sum(0)
    state = start
    for _ in range(rounds):
        total = start.new_zeros(degrees.numel(), start.shape[1])
        for indptr, indices in edges:
            total = total + segment_sum(state, indptr, indices)
        means = joined(total / degrees.clamp(min=1).unsqueeze(1))
        state = torch.where(known.unsqueeze(1), start, means)
    reached = state[:, -1] > 0
    return state[:, :-1] / torch.where(reached, state[:, -1], 1.0).unsqueeze(1), reached
