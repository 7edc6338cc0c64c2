"""Popularity of link destinations, a baseline: the score of a pair is its destination's number of edges."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from khop.inference.dynamic_chunks import Sharing
from khop.inference.link_evaluation import Scores, link_scores
from khop.inference.stages import row_table
from khop.models.link_predictor import LinkPredictor
from khop.sampling.link_seeds import LinkList
from khop.schema import EdgeType, NodeType


class _OfDestination(nn.Module):
    """The decoder: one of the numbers in the row of the destination, in its own dtype."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, source: Tensor, destination: Tensor) -> Tensor:
        """Return (...): a score per pair, from (..., numbers)."""
        shape = torch.broadcast_shapes(source.shape, destination.shape)
        return destination.expand(shape)[..., self.number]


def popularity_scores(
    degrees: Mapping[EdgeType, Tensor], counts: Mapping[NodeType, int], links: LinkList, sharing: Sharing
) -> Scores:
    """Score links and their negatives by `degrees`, int64 (destinations) by type: int64 (n) and (n, k).

    `counts` has the number of nodes of each type. Whole numbers, so that equal destinations tie. The ranks of
    a group share the work.
    """
    ends = dict.fromkeys(end for edge_type in degrees for end in (edge_type[0], edge_type[2]))
    rows = {node_type: torch.zeros(counts[node_type], len(degrees), dtype=torch.int64) for node_type in ends}
    for number, (edge_type, of_type) in enumerate(degrees.items()):
        rows[edge_type[2]][:, number] = of_type
    decoders = {edge_type: _OfDestination(number) for number, edge_type in enumerate(degrees)}
    return link_scores(LinkPredictor(nn.Identity(), decoders), row_table(rows), links, sharing)
