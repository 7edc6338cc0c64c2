"""Node2vec: the second step has the weights of the paper, exactly counted on a small graph."""

from __future__ import annotations

import pytest
import torch

import khop
from support.group_graphs import PAIRS, TO, chorded

GRAPH = chorded()
IN = {node: [source for source, into in PAIRS if into == node] for node in range(24)}


@pytest.mark.parametrize(("p", "q"), [(1.0, 1.0), (0.25, 4.0), (8.0, 0.5)])
def test_second_steps_have_the_enumerated_probabilities(p: float, q: float) -> None:
    count = 40_000
    walks = khop.random_walks(GRAPH, torch.full((count,), 6), [TO] * 2, bias=khop.Node2Vec(p, q), seed=2)
    expected: dict[tuple[int, int], float] = {}
    for middle in IN[6]:
        weights = [1 / p if end == 6 else 1.0 if end in IN[6] else 1 / q for end in IN[middle]]
        for end, weight in zip(IN[middle], weights, strict=True):
            share = weight / sum(weights) / len(IN[6])
            expected[middle, end] = expected.get((middle, end), 0) + share
    pairs, counts = walks[:, 1:].unique(dim=0, return_counts=True)
    found = dict(zip(map(tuple, pairs.tolist()), (counts / count).tolist(), strict=True))
    assert found.keys() <= expected.keys()
    for pair, share in expected.items():
        assert abs(found.get(pair, 0.0) - share) <= 4.5 * (share * (1 - share) / count) ** 0.5


def test_walks_with_bias_end_and_are_of_edges() -> None:
    walks = khop.random_walks(GRAPH, torch.tensor([23, 22, 1]), [TO] * 5, bias=khop.Node2Vec(2, 2))
    assert walks[0].tolist() == [23, -1, -1, -1, -1, -1]
    assert walks[1].tolist() == [22] * 6
    assert all((b, a) in PAIRS for a, b in zip(walks[2].tolist(), walks[2, 1:].tolist(), strict=False))


def test_weights_are_whole_numbers() -> None:
    assert khop.Node2Vec(0.5, 4.0).weights == (1 << 20, 1 << 19, 1 << 17)
    with pytest.raises(ValueError, match=r"p 0\.0: must be from 1/1024 to 1024"):
        khop.Node2Vec(p=0.0)
