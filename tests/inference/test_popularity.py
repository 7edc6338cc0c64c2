"""Popularity gives each pair the number of edges of its destination, exactly."""

from __future__ import annotations

import torch

from khop.inference.chunks import DynamicChunks
from khop.inference.link_evaluation import mean_metrics, popularity_scores
from khop.sampling.links.link_seeds import Links

BUYS, KNOWS = ("user", "buys", "item"), ("user", "knows", "user")


def test_a_pair_has_the_score_of_its_destination() -> None:
    degrees = torch.tensor([4, 0, 1 << 40, (1 << 40) + 1])  # no float32 tells the last two apart
    edges, negatives = torch.tensor([[0, 1, 1], [3, 0, 1]]), torch.tensor([[0, 2], [1, 2], [0, 3]])
    links = Links({BUYS: edges}, negatives={BUYS: negatives})
    scores, of_negatives = popularity_scores(
        {BUYS: degrees}, {"user": 2, "item": degrees.numel()}, links, DynamicChunks()
    )[BUYS]
    assert torch.equal(scores, degrees[edges[1]])
    assert torch.equal(of_negatives, degrees[negatives])
    # Places: first of 3, second behind 2**40, and third.
    found = mean_metrics({BUYS: (scores, of_negatives)}, ["mrr"])["mrr"]
    assert abs(found - (1 + 1 / 2 + 1 / 3) / 3) < 1e-15


def test_sources_and_destinations_may_be_of_one_type() -> None:
    degrees = torch.tensor([7, 5, 3])
    links = Links({KNOWS: torch.tensor([[0, 2], [1, 0]])}, negatives={KNOWS: torch.tensor([[2], [1]])})
    scores, of_negatives = popularity_scores({KNOWS: degrees}, {KNOWS[0]: 3}, links, DynamicChunks())[KNOWS]
    assert (scores.tolist(), of_negatives.tolist()) == ([5, 7], [[3], [5]])
