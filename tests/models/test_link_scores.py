"""Scores of all edge types in one tensor are the scores of each type."""

from __future__ import annotations

import torch

from khop.models.link_scores import LinkScores, ScoresByType, joined

A, B = ("n", "a", "n"), ("n", "b", "n")


def test_joined_scores_are_split_by_type_and_joined_again() -> None:
    pairs, negatives = torch.arange(5.0), torch.arange(10.0).view(5, 2)
    scores = ScoresByType(LinkScores(pairs, negatives), {A: 2, B: 3})
    assert list(scores) == [A, B]
    assert len(scores) == 2
    assert scores[B].pairs.tolist() == [2, 3, 4]
    assert scores[A].negatives is not None
    assert scores[A].negatives.tolist() == [[0, 1], [2, 3]]
    assert joined(scores) is scores.joined
    again = joined(dict(scores))
    assert again is not None
    assert again.negatives is not None
    assert torch.equal(again.pairs, pairs)
    assert torch.equal(again.negatives, negatives)


def test_types_with_different_negatives_are_not_joined() -> None:
    assert joined({A: LinkScores(torch.ones(2)), B: LinkScores(torch.ones(2), torch.ones(2, 3))}) is None
    without = joined({A: LinkScores(torch.ones(2)), B: LinkScores(torch.zeros(1))})
    assert without is not None
    assert without.negatives is None
    assert without.pairs.tolist() == [1, 1, 0]
