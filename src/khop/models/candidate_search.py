"""Rows by which a search finds the destinations of the highest scores of a decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from khop.draw import CandidateScore


@dataclass(frozen=True, eq=False)
class CandidateSearch:
    """A query per source and a row per destination; `score` of both orders destinations as a decoder does."""

    queries: Tensor  # (sources, width)
    candidates: Tensor  # (destinations, width)
    score: CandidateScore = "dot"
    grid: int = 64  # values may be rounded to multiples of 1 / grid


@runtime_checkable
class SearchedDecoder(Protocol):
    """A decoder with scores that are inner products or distances of rows."""

    def search(self, sources: Tensor, destinations: Tensor) -> CandidateSearch:
        """Return a query per source and a row per destination."""
        ...
