"""Orders of candidates by score, written out."""

from __future__ import annotations

import itertools


def orders(scores: list[float]) -> list[tuple[int, ...]]:
    """Every order of the candidates that goes down in score."""
    found = itertools.permutations(range(len(scores)))
    return [o for o in found if all(scores[a] >= scores[b] for a, b in itertools.pairwise(o))]
