"""Draws that estimate sums over all neighbors.

Draws that estimate sums over all neighbors, normalized by the degrees of both ends of an edge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from khop.arguments import instance_of, shown
from khop.draw import DrawKey, Frontier, Neighbors
from khop.graph.rule import DrawArrays, FrontierField, Hop, Need, Rule, RuleBase, reads_times
from khop.kernels.draw_request import DrawRequest
from khop.sampling.rules.uniform import Uniform
from khop.schema import EdgeType, Schema

Weigh = Callable[[DrawRequest, Neighbors], Tensor]


@dataclass(frozen=True)
class Sum(RuleBase):
    """Draws of `inner`, weighted so that a layer estimates the sum over all neighbors, not their mean.

    A neighbor weighs degree / drawn, or degree times its weight if `inner` gives weights. The degree is the
    number of edges from which the row is drawn: of the training graph, without links that are held out, and
    within `Temporal(column, inner=Sum())` of the edges that the time limit allows. It counts edges of weight
    0 too. Models that sum need this rule: GIN, for example.
    """

    inner: Rule = Uniform()

    def __post_init__(self) -> None:
        remedy = "must be khop.Uniform(), khop.Weighted(column) or another rule without time limits"
        instance_of("inner", self.inner, RuleBase, remedy)
        if reads_times(self.inner):
            raise ValueError(f"inner {shown(self.inner)}: {remedy}; give Temporal(column, inner=Sum())")

    @property
    def frontier_fields(self) -> frozenset[FrontierField]:
        """The fields of the inner rule."""
        return self.inner.frontier_fields

    @property
    def is_uniform(self) -> bool:
        """True if the inner rule draws every edge of a row alike."""
        return self.inner.is_uniform

    def has_weights(self, fanout: int) -> bool:
        """Return True: every neighbor has a weight."""
        return True

    def check(self, schema: Schema) -> None:
        """Raise ValueError unless the graph has the columns of the inner rule."""
        self.inner.check(schema)

    def needs(self, edge_type: EdgeType) -> tuple[Need, ...]:
        """Return the arrays of the inner rule."""
        return self.inner.needs(edge_type)

    def most(self, fanout: int) -> int | None:
        """Return the largest number of edges that the inner rule gives a row."""
        return self.inner.most(fanout)

    def plan(
        self, edge_type: EdgeType, frontier: Frontier, hop: Hop, key: DrawKey, arrays: DrawArrays
    ) -> DrawRequest:
        """Return the inner rule's draw, with other weights."""
        request = self.inner.plan(edge_type, frontier, hop, key, arrays)
        return replace(request, weigh=DegreePerDraw(request.weigh))

    def reference(self, request: DrawRequest) -> Neighbors:
        """Carry out a draw in torch: the inner rule's, with other weights."""
        return request.weighed(self.inner.reference(replace(request, weigh=None)))

    def exact_weights(self, edge_type: EdgeType, arrays: DrawArrays) -> Tensor:
        """Return the coefficients of the inner rule times the degree of each edge's row."""
        csc = arrays.edges[edge_type]
        try:
            of_mean = self.inner.exact_weights(edge_type, arrays)
        except ValueError as error:
            raise ValueError(f"{self}: {error}") from error
        if of_mean is None:
            return torch.ones(csc.num_edges, dtype=torch.float64, device=csc.indptr.device)
        return of_mean * csc.indptr.diff()[csc.destinations()]

    def exact_fanout(self, schema: Schema, edge_type: EdgeType, fanout: int) -> int:
        """Return the fanout of the inner rule."""
        return self.inner.exact_fanout(schema, edge_type, fanout)


@dataclass(frozen=True)
class DegreePerDraw:
    """Weights of a mean over drawn neighbors, times the number of edges that each row is drawn from."""

    of_mean: Weigh | None  # of the inner rule, computed after its draw

    def __call__(self, request: DrawRequest, drawn: Neighbors) -> Tensor:
        """Return float64 (edges)."""
        begin, end = request.rows.bounds(request.csc)
        degrees, weights = (end - begin).double(), drawn.weights
        if self.of_mean is not None:
            weights = self.of_mean(request, drawn)
        if weights is None:
            return drawn.by_row(degrees / drawn.offsets.diff())
        return drawn.by_row(degrees) * weights


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
