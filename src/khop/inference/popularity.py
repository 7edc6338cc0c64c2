"""Popularity of link destinations, a baseline: the score of a pair is its destination's number of edges."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from khop.inference.dynamic_chunks import Sharing
from khop.inference.link_evaluation import Scores, link_scores
from khop.inference.stages import row_table
from khop.models.link_predictor import LinkPredictor
from khop.sampling.link_seeds import LinkList
from khop.schema import EdgeType


class _OfDestination(nn.Module):
    """The decoder: the number in the row of the destination, in its own dtype."""

    def forward(self, source: Tensor, destination: Tensor) -> Tensor:
        """Return (...): a score per pair, from (..., 1)."""
        shape = torch.broadcast_shapes(source.shape, destination.shape)
        return destination.expand(shape).squeeze(-1)


def popularity_scores(
    edge_type: EdgeType, degrees: Tensor, num_sources: int, links: LinkList, sharing: Sharing
) -> Scores:
    """Score links and their negatives by `degrees`, int64 (destinations): int64 (n) and (n, k).

    Whole numbers, so that equal destinations tie. The ranks of a group share the work.
    """
    rows = {edge_type[0]: torch.zeros(num_sources, 1, dtype=torch.int64), edge_type[2]: degrees.unsqueeze(1)}
    model = LinkPredictor(nn.Identity(), {edge_type: _OfDestination()})
    return link_scores(model, row_table(rows), links, sharing)
