"""Times of edges, from a graph's columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import khop._core as _core
from khop.kernels.csc import Csc

_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, eq=False)
class EdgeTimes:
    """Times of edges: the edge's own time, the time of its source, or the later of both."""

    edges: Tensor | None  # (edges), whole numbers
    sources: Tensor | None = None  # (source nodes), whole numbers

    def check(self, csc: Csc) -> None:
        """Raise ValueError unless there is a whole-number time for each edge, on the device of the graph."""
        if self.edges is None and self.sources is None:
            raise ValueError("neither edges nor sources have times")
        for name, times, count in (("edges", self.edges, csc.num_edges), ("sources", self.sources, None)):
            if times is None:
                continue
            shape = (times.numel() if count is None else count,)
            if times.dtype not in _DTYPES or times.shape != shape or times.device != csc.indptr.device:
                given = f"times of {name} are {times.dtype} {tuple(times.shape)} on {times.device}"
                raise ValueError(f"{given}: must be whole numbers {shape} on {csc.indptr.device}")

    def of(self, csc: Csc) -> Tensor:
        """Return the times, int64 (edges)."""
        if self.sources is None:
            assert self.edges is not None
            return self.edges.long()
        of_sources = self.sources.long()[csc.indices.long()]
        return of_sources if self.edges is None else torch.maximum(of_sources, self.edges.long())

    def core(self, csc: Csc) -> _core.OwnTimes:
        """Return the times in the form that the core takes."""
        edges, sources = (
            None if times is None else times.contiguous() for times in (self.edges, self.sources)
        )
        return edges, sources, csc.indices


def whole_numbers(column: Tensor) -> Tensor:
    """Return the column, converted to int64 if no kernel reads its dtype."""
    return column if column.dtype in _DTYPES else column.long()
