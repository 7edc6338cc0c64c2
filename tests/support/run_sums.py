"""The order of sums over the edges of a row, in NumPy: see RunSums in csrc/segment_rows.h."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from khop.kernels.segment import accumulator

RUN = 512


def sum_in_runs(terms: np.ndarray, run: int = RUN) -> np.ndarray:
    """Sum (edges, width) to (width): each `run` terms in order, beginning with 0, then each `run` sums."""
    while True:
        starts = range(0, max(1, len(terms)), run)
        zero = np.zeros((1, terms.shape[1]), terms.dtype)
        sums = [np.add.accumulate(np.concatenate([zero, terms[at : at + run]]))[-1] for at in starts]
        if len(sums) == 1:
            return sums[0]
        terms = np.stack(sums)


def sums_of_rows(terms: Tensor, indptr: Tensor, run: int = RUN) -> Tensor:
    """Sum terms (edges, width) over each row, in the dtype in which they are added."""
    wide = terms.to(accumulator(terms.dtype)).numpy()
    bounds = indptr.tolist()
    rows = [sum_in_runs(wide[begin:end], run) for begin, end in pairwise(bounds)]
    return torch.from_numpy(np.stack(rows)) if rows else torch.empty(0, terms.shape[1], dtype=terms.dtype)
