"""Rows of a graph in which several edges have the same source."""

from __future__ import annotations

import torch
from torch import Tensor

import khop._core as _core
from khop.kernels.csc import Csc, naming_damage


def parallel_rows(csc: Csc, *, threads: int = 1) -> Tensor:
    """Return for each row 1 if some of its edges have the same source, else 0: uint8 (rows)."""
    if csc.indptr.device.type != "cpu":
        return parallel_rows_reference(csc)
    found = torch.empty(csc.num_rows, dtype=torch.uint8)
    with naming_damage(csc.home):
        _core.find_parallel_rows(csc.core, found, threads)
    return found


def parallel_rows_reference(csc: Csc) -> Tensor:
    """The same as `parallel_rows` in plain torch, on any device."""
    rows, sources = csc.destinations(), csc.indices
    ordered = sources.argsort(stable=True)
    ordered = ordered[rows[ordered].argsort(stable=True)]
    repeats = (rows[ordered].diff() == 0) & (sources[ordered].diff() == 0)
    found = torch.zeros(csc.num_rows, dtype=torch.uint8, device=csc.indptr.device)
    found[rows[ordered][1:][repeats]] = 1
    return found
