"""Draws that estimate sums over all neighbors, normalized by the degrees of both ends of an edge."""

from __future__ import annotations

from dataclasses import dataclass

from khop.rules.rule import Rule
from khop.rules.sum import Sum


@dataclass(frozen=True)
class SymmetricSum(Sum):
    """Draws of `inner`, weighted so that a layer estimates the sum of h / sqrt(d_source * d_destination).

    This is the normalization of GCN (Kipf and Welling 2017) and LightGCN (He et al. 2020). The degree d of a
    node is its number of in-edges over all edge types of the graph, and at least 1: of the training graph,
    without links that are held out, and within `Temporal(column, inner=SymmetricSum())` of the edges that the
    time limit allows. A sampler counts them by one more hop over all nodes of a batch; the edges of
    the batch do not matter. In-edges of a node and out-edges are taken to be the same number, as in
    torch_geometric: write a directed graph with the reverses of its edges.
    """

    @property
    def degrees(self) -> Rule:
        """Rule whose draws of one neighbor weigh the number of edges of their row."""
        return Sum()
