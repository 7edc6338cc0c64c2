"""Scores of the links of a batch, by edge type, or joined for all edge types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from khop.schema import EdgeType


@dataclass(frozen=True)
class LinkScores:
    """Scores of a batch's links of one edge type, in the layout of its LinkRows."""

    pairs: Tensor  # (pairs)
    negatives: Tensor | None = None  # (links, k), of triplets: negative destinations, then sources


@dataclass(frozen=True, eq=False)
class ScoresByType(Mapping[EdgeType, LinkScores]):
    """Scores of the links of all edge types in one tensor, in the order of the types."""

    joined: LinkScores
    counts: Mapping[EdgeType, int]  # pairs of each edge type

    def __getitem__(self, edge_type: EdgeType) -> LinkScores:
        """Return the scores of an edge type."""
        return self._by_type[edge_type]

    def __iter__(self) -> Iterator[EdgeType]:
        """Iterate over the edge types."""
        return iter(self.counts)

    def __len__(self) -> int:
        """Return the number of edge types."""
        return len(self.counts)

    @cached_property
    def _by_type(self) -> dict[EdgeType, LinkScores]:
        sizes = list(self.counts.values())
        pairs, negatives = self.joined.pairs.split(sizes), self.joined.negatives
        of_types = [None] * len(sizes) if negatives is None else negatives.split(sizes)
        return {t: LinkScores(*each) for t, *each in zip(self.counts, pairs, of_types, strict=True)}


def joined(scores: Mapping[EdgeType, LinkScores]) -> LinkScores | None:
    """Return the scores of all edge types as one; None if their links have different numbers of negatives."""
    if isinstance(scores, ScoresByType):
        return scores.joined
    of_types = list(scores.values())
    widths = {None if each.negatives is None else each.negatives.shape[1] for each in of_types}
    if len(widths) != 1:
        return None
    pairs = torch.cat([each.pairs for each in of_types])
    negatives = [each.negatives for each in of_types if each.negatives is not None]
    return LinkScores(pairs, torch.cat(negatives) if negatives else None)
