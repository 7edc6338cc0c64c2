"""Label propagation: labels of training nodes averaged over neighbors, as a baseline without a model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from khop.kernels.segment import segment_sum

ROUNDS = 20


def propagated(
    edges: Sequence[tuple[Tensor, Tensor]], values: Tensor, known: Tensor, rounds: int = ROUNDS
) -> tuple[Tensor, Tensor]:
    """Spread known rows along edges (Zhu and Ghahramani 2002); return rows, and True where one has arrived.

    `edges` are offsets and sources of each edge type by destination, (nodes + 1) and (edges). `values` are
    float (nodes, k), `known` bool (nodes). In each round a node takes the mean of its in-neighbors, weighted
    by the share of known rows that has arrived there; known rows stay. Returns float64 (nodes, k) and bool
    (nodes).
    """
    mass = known.double().unsqueeze(1)
    start = torch.cat([torch.where(known.unsqueeze(1), values.double(), 0.0), mass], dim=1)
    degrees = sum((indptr.diff() for indptr, _ in edges), torch.zeros_like(known, dtype=torch.int64))
    state = start
    for _ in range(rounds):
        sums = (segment_sum(state, indptr, indices) for indptr, indices in edges)
        total = sum(sums, torch.zeros_like(state))
        state = torch.where(known.unsqueeze(1), start, total / degrees.clamp(min=1).unsqueeze(1))
    reached = state[:, -1] > 0
    return state[:, :-1] / torch.where(reached, state[:, -1], 1.0).unsqueeze(1), reached
