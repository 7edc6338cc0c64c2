"""Rules that estimate sums over all neighbors: plain, normalized by degrees, or the mean of each relation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor

from khop.arguments import column_name, instance_of, shown
from khop.components import Default, Text
from khop.draw import DrawKey, Frontier, Neighbors
from khop.graph.layout import edge_array, edge_column
from khop.graph.needs import Arrays, EdgeColumn, RuleArrays, RuleNeed, derived_name
from khop.graph.rule import FrontierField, Hop, Rule, RuleBase, reads_times
from khop.kernels.draw_request import DrawRequest
from khop.kernels.edge_arrays import counts_in_ranges, relation_counts
from khop.sampling.rules.labor import Labor
from khop.sampling.rules.top_k import TopK
from khop.sampling.rules.uniform import UNIFORM
from khop.sampling.rules.weighted import drawn_by
from khop.schema import EdgeType, Schema

Weigh = Callable[[DrawRequest, Neighbors], Tensor]


@dataclass(frozen=True)
class SumOptions:
    """Options of draws that estimate sums."""

    column: str = ""
    """Edge column of sampling weights, or of values if inner is top-k (default: uniform sampling)"""
    replacement: bool = False
    """Sample neighbors with replacement. Without replacement, means by weight are biased"""
    inner: Annotated[
        Literal["uniform", "weighted", "labor", "top-k"] | None,
        Default("uniform, or weighted if column is set"),
    ] = None
    """Rule that selects the neighbors of a sum: uniform, weighted, labor or top-k. With relation-mean, only
    uniform and labor are possible"""
    layer_dependent: bool = False
    """Use the same random numbers in all hops of LABOR. Batches then have fewer nodes, but outputs of models
    with several layers are biased"""
    kappa: Annotated[int, Ge(1), Le((1 << 31) - 1)] = 1
    """Number of steps for which a node keeps its random number in LABOR. Above 1, successive batches share
    nodes, which helps caches, but batches are not independent"""

    def __post_init__(self) -> None:
        by_column = self.inner in ("weighted", "top-k")
        if by_column and not self.column:
            raise ValueError(f"inner is {self.inner!r} and column is not set: give the column to draw by")
        given = {
            "column": bool(self.column) and not (by_column or self.inner is None),
            "replacement": self.replacement and self.inner in ("labor", "top-k"),
            "layer_dependent": self.layer_dependent and self.inner != "labor",
            "kappa": self.kappa > 1 and self.inner != "labor",
        }
        for name in (name for name, is_unread in given.items() if is_unread):
            inner = self.inner or "not set"
            raise ValueError(
                f"{name} is {getattr(self, name)!r} and inner is {inner}: it does not read {name}"
            )

    @property
    def rule(self) -> Rule:
        """The inner rule."""
        match self.inner:
            case "labor":
                return Labor(self.layer_dependent, self.kappa)
            case "top-k":
                return TopK(self.column)
        return drawn_by(self.column, self.replacement)


@dataclass(frozen=True)
class Sum(RuleBase):
    """Rule whose weights make a layer estimate the sum over all neighbors instead of the mean.

    The weight of a neighbor is degree / number of sampled neighbors, or degree times its weight if `inner`
    gives weights. The degree is the number of edges from which the row is drawn: of the training graph,
    without held-out links, and within `Temporal(column, inner=Sum())` of the edges that the time limit
    allows. It counts edges of weight 0 too. Models that sum, such as GIN, need this rule.

    Args:
        inner: Sampling rule without time limits; default `Uniform()`.
    Raises:
        ValueError: The inner rule is not a rule, or has time limits.
    Example:
        >>> sampler = khop.NeighborSampler(khop.open_graph("debian"), [2], rule=khop.Sum())
        >>> batch = khop.Loader(sampler, [0], batch_size=1).batch(epoch=0, step=0)
        >>> batch.blocks[0].adjacency.weight
        tensor([14.5000, 14.5000])
    """

    Options: ClassVar[type] = SumOptions

    inner: Rule = UNIFORM

    def __post_init__(self) -> None:
        remedy = "must be khop.Uniform(), khop.Weighted(column) or another rule without time limits"
        instance_of("inner", self.inner, RuleBase, remedy)
        if reads_times(self.inner):
            raise ValueError(f"inner {shown(self.inner)}: {remedy}; give Temporal(column, inner=Sum())")

    @classmethod
    def build(cls, options: SumOptions, context: object) -> Sum:
        """Make the rule of a run."""
        return cls(options.rule)

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

    def needs(self, edge_type: EdgeType) -> tuple[RuleNeed[Any], ...]:
        """Return the arrays of the inner rule."""
        return self.inner.needs(edge_type)

    def most(self, fanout: int) -> int | None:
        """Return the largest number of edges that the inner rule gives a row."""
        return self.inner.most(fanout)

    def plan(
        self, edge_type: EdgeType, frontier: Frontier, hop: Hop, key: DrawKey, arrays: Arrays
    ) -> DrawRequest:
        """Return the inner rule's draw, with other weights."""
        request = self.inner.plan(edge_type, frontier, hop, key, arrays)
        return replace(request, weigh=DegreePerDraw(request.weigh))

    def reference(self, request: DrawRequest) -> Neighbors:
        """Carry out a draw in torch: the inner rule's, with other weights."""
        return request.weighed(self.inner.reference(replace(request, weigh=None)))

    def exact_weights(self, edge_type: EdgeType, arrays: Arrays) -> Tensor:
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


COUNTING = Sum()  # a draw of one neighbor weighs the number of edges of its row


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
    """Rule whose weights make a layer estimate the sum of h / sqrt(d_source * d_destination).

    This is the normalization of GCN (Kipf and Welling 2017) and LightGCN (He et al. 2020). The degree d of a
    node is its number of in-edges over all edge types of the graph, and at least 1: of the training graph,
    without held-out links, and within `Temporal(column, inner=SymmetricSum())` of the edges that the time
    limit allows. A sampler counts in-edges with one more hop over all nodes of a batch, regardless of the
    batch's edges. As in torch_geometric, the out-degree of a node is assumed to equal its in-degree: write a
    directed graph with the reverses of its edges.

    Args:
        inner: Sampling rule without time limits; default `Uniform()`.
    Raises:
        ValueError: The inner rule is not a rule, or has time limits.
    Example:
        >>> sampler = khop.NeighborSampler(khop.open_graph("debian"), [2], rule=khop.SymmetricSum())
        >>> batch = khop.Loader(sampler, [0], batch_size=1).batch(epoch=0, step=0)
        >>> batch.blocks[0].adjacency.weight.shape
        torch.Size([2])
    """

    @property
    def degrees(self) -> Rule:
        """Rule whose draws of one neighbor weigh the number of edges of their row."""
        return COUNTING


@dataclass(frozen=True)
class RelationOptions:
    """Options of draws that estimate means by relation, as a run sets them."""

    column: Text
    """Edge column with the relation of each edge, an integer"""
    inner: Literal["uniform", "labor"] = "uniform"
    """Rule that selects the neighbors"""


class RelationCounts(RuleNeed[Tensor]):
    """The number of edges of the row with the same value of a column, int32 (edges)."""

    of_integers = True
    by_edge = True

    def made(self, arrays: RuleArrays) -> Tensor | None:
        """Count them; None without the column."""
        edge_type, column = self.edge_type, self.column
        values = arrays[EdgeColumn(edge_type, column)]
        if values is None:
            return None
        csc = arrays.edges[edge_type]
        return arrays.derived.vector(
            derived_name(edge_type, f"relation_counts.{column}"),
            csc.num_edges,
            lambda: relation_counts(csc, values),
            [edge_array(edge_type, "indptr"), edge_column(edge_type, column)],
            "int32",
        )


@dataclass(frozen=True)
class RelationMean(RuleBase):
    """Rule whose weights make a layer estimate the mean over the neighbors of each relation.

    The weight of a neighbor is its weight by `Sum(inner)`, divided by the number of edges in its row that
    have the same value in `column`. With `Uniform()` and `Labor()`, the weighted sum over the sampled edges
    of a relation is then an unbiased estimate of the mean over all edges of this relation, even if it is
    rare. With other rules, it is the sum that `Sum(inner)` estimates, divided by these counts.
    `khop.models.RGCN` with relations needs this rule if it is trained on few neighbors per node.

    Edges are counted in the training graph, without held-out links. The target links of a step count,
    although they do not pass messages. The counts are computed once per graph. Within
    `Temporal(column, inner=RelationMean(...))`, only edges that the time limit allows are counted, and
    sampling reads all of them.

    Args:
        column: Edge column of relations, one integer per edge. In edge types without it, all edges have
            one relation.
        inner: Sampling rule without time limits; default `Uniform()`.
    Raises:
        ValueError: The inner rule is not a rule, or has time limits.
    Example:
        >>> nodes = {"item": khop.NodeTable(4)}
        >>> ways = {"way": torch.tensor([0, 0, 1])}
        >>> edges = {"item to item": khop.EdgeTable(torch.tensor([0, 1, 2]), torch.tensor([3, 3, 3]), ways)}
        >>> graph = khop.open_graph(khop.write_graph(tmp / "graph", nodes, edges))
        >>> sampler = khop.NeighborSampler(graph, [-1], rule=khop.RelationMean("way"))
        >>> khop.Loader(sampler, [3], batch_size=1).batch(epoch=0, step=0).blocks[0].adjacency.weight
        tensor([0.5000, 0.5000, 1.0000])
    """

    Options: ClassVar[type] = RelationOptions
    column_setting: ClassVar[str] = "model.relation"

    column: str
    inner: Rule = UNIFORM

    def __post_init__(self) -> None:
        column_name(self.column)
        remedy = "must be khop.Uniform(), khop.Labor() or another rule without time limits"
        instance_of("inner", self.inner, RuleBase, remedy)
        if reads_times(self.inner):
            raise ValueError(
                f"inner {shown(self.inner)}: {remedy}; give Temporal(column, inner=RelationMean(...))"
            )

    @classmethod
    def build(cls, options: RelationOptions, context: object) -> RelationMean:
        """Make the rule of a run."""
        return cls(options.column, Labor() if options.inner == "labor" else UNIFORM)

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

    def needs(self, edge_type: EdgeType) -> tuple[RuleNeed[Any], ...]:
        """Return the relations and the numbers of their edges, and the arrays of the inner rule."""
        return (
            *self.inner.needs(edge_type),
            EdgeColumn(edge_type, self.column),
            RelationCounts(edge_type, self.column),
        )

    def most(self, fanout: int) -> int | None:
        """Return the largest number of edges that the inner rule gives a row."""
        return self.inner.most(fanout)

    def plan(
        self, edge_type: EdgeType, frontier: Frontier, hop: Hop, key: DrawKey, arrays: Arrays
    ) -> DrawRequest:
        """Return the inner rule's draw, with other weights."""
        request = Sum(self.inner).plan(edge_type, frontier, hop, key, arrays)
        assert request.weigh is not None  # of the sum
        relations, counts = arrays[EdgeColumn(edge_type, self.column)], self._counts(edge_type, arrays)
        return replace(request, weigh=SharePerDraw(request.weigh, relations, counts))

    def reference(self, request: DrawRequest) -> Neighbors:
        """Carry out a draw in torch: the inner rule's, with other weights."""
        return request.weighed(self.inner.reference(replace(request, weigh=None)))

    def exact_weights(self, edge_type: EdgeType, arrays: Arrays) -> Tensor:
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

    def _counts(self, edge_type: EdgeType, arrays: Arrays) -> Tensor | None:
        return arrays[RelationCounts(edge_type, self.column)]


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
