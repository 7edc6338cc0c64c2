"""Stages of a pass over the nodes of several parts."""

from __future__ import annotations

from itertools import accumulate

import torch
from hypothesis import strategies as st

from khop.inference.stages import Stage

part_sizes = st.lists(st.integers(0, 40), min_size=1, max_size=6)
ranks = st.integers(1, 7)
chunk_sizes = st.integers(1, 15)


def stage_of(sizes: list[int], chunk_size: int) -> Stage:
    """A stage of parts with these numbers of nodes."""
    bounds = tuple(accumulate(sizes, initial=0))
    return Stage(0, "node", bounds[-1], chunk_size, torch.empty(0, 2), pieces=bounds)
