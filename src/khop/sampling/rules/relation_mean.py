"""Draws that estimate the mean over the neighbors of each relation."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from khop.arguments import column_name, instance_of, shown
from khop.draw import DrawKey, Frontier, Neighbors
from khop.graph.rule import DrawArrays, FrontierField, Hop, Need, NeedKind, Rule, RuleBase, reads_times
from khop.kernels.draw_request import DrawRequest
from khop.kernels.edge_arrays import counts_in_ranges
from khop.sampling.rules.sum import Sum, Weigh
from khop.sampling.rules.uniform import Uniform
from khop.schema import EdgeType, Schema


@dataclass(frozen=True)
class RelationMean(RuleBase):
    """Draws of `inner`, weighted so that a layer estimates the mean over the neighbors of each relation.

    A neighbor weighs as by `Sum(inner)`, divided by the number of edges of its row that have the same value
    in `column`. So the mean over draws of the weighted sum over the edges of a relation is the mean over all
    edges of that relation, however rare it is: with `Uniform()` and `Labor()`. With other rules it is the sum
    that `Sum(inner)` estimates, divided by these numbers. `khop.models.RGCN` with relations needs this rule
    where it is trained on few neighbors.

    The numbers are those of the training graph, without links that are held out; links of a step count,
    although they carry no message. They are computed once per graph. Within
    `Temporal(column, inner=RelationMean(...))` they are those of the edges that the time limit allows, and a
    draw reads all of these. In edge types without the column, all edges have one relation.
    """

    column: str  # an edge column: one integer each
    inner: Rule = Uniform()

    def __post_init__(self) -> None:
        column_name(self.column)
        remedy = "must be khop.Uniform(), khop.Labor() or another rule without time limits"
        instance_of("inner", self.inner, RuleBase, remedy)
        if reads_times(self.inner):
            raise ValueError(
                f"inner {shown(self.inner)}: {remedy}; give Temporal(column, inner=RelationMean(...))"
            )

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
        """Raise ValueError unless the graph has the relations, and the columns of the inner rule."""
        self.inner.check(schema)
        super().check(schema)

    def needs(self, edge_type: EdgeType) -> tuple[Need, ...]:
        """Return the relations and the numbers of their edges, and the arrays of the inner rule."""
        return (
            *self.inner.needs(edge_type),
            Need(NeedKind.COLUMN, edge_type, self.column),
            Need(NeedKind.RELATION_COUNTS, edge_type, self.column),
        )

    def most(self, fanout: int) -> int | None:
        """Return the largest number of edges that the inner rule gives a row."""
        return self.inner.most(fanout)

    def plan(
        self, edge_type: EdgeType, frontier: Frontier, hop: Hop, key: DrawKey, arrays: DrawArrays
    ) -> DrawRequest:
        """Return the inner rule's draw, with other weights."""
        request = Sum(self.inner).plan(edge_type, frontier, hop, key, arrays)
        assert request.weigh is not None  # of the sum
        relations, counts = arrays.column(edge_type, self.column), self._counts(edge_type, arrays)
        return replace(request, weigh=SharePerDraw(request.weigh, relations, counts))

    def reference(self, request: DrawRequest) -> Neighbors:
        """Carry out a draw in torch: the inner rule's, with other weights."""
        return request.weighed(self.inner.reference(replace(request, weigh=None)))

    def exact_weights(self, edge_type: EdgeType, arrays: DrawArrays) -> Tensor:
        """Return the coefficients of `Sum(inner)`, over the edges of the row by the same relation."""
        csc, counts = arrays.edges[edge_type], self._counts(edge_type, arrays)
        try:
            of_sum = Sum(self.inner).exact_weights(edge_type, arrays)
        except ValueError as error:
            raise ValueError(f"{self}: {error}") from error
        return of_sum / (csc.degrees()[csc.destinations()] if counts is None else counts)

    def exact_fanout(self, schema: Schema, edge_type: EdgeType, fanout: int) -> int:
        """Return the fanout of the inner rule."""
        return self.inner.exact_fanout(schema, edge_type, fanout)

    def _counts(self, edge_type: EdgeType, arrays: DrawArrays) -> Tensor | None:
        return arrays.vector(Need(NeedKind.RELATION_COUNTS, edge_type, self.column))


@dataclass(frozen=True)
class SharePerDraw:
    """Weights of a sum over drawn neighbors, over the number of edges of the row by the same relation."""

    of_sum: Weigh  # computed after the draw
    relations: Tensor | None  # integers (edges of the graph); None: all edges have one relation
    counts: Tensor | None  # int32 (edges of the graph), without time limits

    def __call__(self, request: DrawRequest, drawn: Neighbors) -> Tensor:
        """Return float64 (edges)."""
        of_sum, edges = self.of_sum(request, drawn), drawn.edges
        assert edges is not None  # `sample_hop` asks for them
        begin, end = request.rows.bounds(request.csc)
        if self.relations is None or self.counts is None:
            return of_sum / drawn.by_row(end - begin)
        if request.rows.ranges is None:
            return of_sum / self.counts[edges]
        return of_sum / counts_in_ranges(self.relations, begin, end, edges, drawn.offsets)
