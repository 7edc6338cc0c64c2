"""Scores of links over samples: exact over all neighbors, and alike in every chunk."""

from __future__ import annotations

import pytest
import torch

from khop.draw import GivenNegatives, NegativeMode
from khop.inference.collective_chunks import InferenceWork
from khop.inference.link_evaluation import link_scores, node_rows
from khop.inference.sampled_links import sampled_link_scores
from khop.inference.stages import row_table
from khop.loading.columns import ColumnChoice
from khop.sampling.links import LinkSampler
from support.small_links import BUYS, ON, graph, links, predictor

TYPES = ("user", "item", "tag", "item")


@pytest.mark.parametrize("chunk_size", [3, 100])
def test_sampled_scores_of_all_neighbors_are_the_exact_ones(chunk_size: int) -> None:
    model, whole = predictor("mlp"), graph()
    exact = link_scores(model, row_table(node_rows(model.encoder, whole, whole.features, TYPES)), links(3))
    sampler = LinkSampler(whole, [-1, -1], negatives=GivenNegatives(NegativeMode.TRIPLET))
    columns = ColumnChoice.of(whole.schema, ["x"], (), ())
    sampled = sampled_link_scores(
        model, sampler, whole.features, links(3), columns, InferenceWork(chunk_size)
    )
    for edge_type in (BUYS, ON):
        for ours, theirs in zip(sampled[edge_type], exact[edge_type], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_a_link_is_sampled_alike_in_every_chunk_and_every_evaluation() -> None:
    model, whole = predictor("mlp"), graph()
    sampler = LinkSampler(whole, [2, 1], negatives=GivenNegatives(NegativeMode.TRIPLET), trees="disjoint")
    columns = ColumnChoice.of(whole.schema, ["x"], (), ())
    first, second, other = (
        sampled_link_scores(model, sampler, whole.features, links(3), columns, InferenceWork(size), seed)[
            BUYS
        ][1]
        for size, seed in ((2, 0), (23, 0), (23, 1))
    )
    torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(second, other)
