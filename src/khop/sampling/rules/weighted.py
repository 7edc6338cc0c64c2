"""Sampling rule with probabilities in proportion to edge weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from khop.arguments import checked_field, column_name, truth
from khop.components import Text
from khop.draw import DrawKey, Frontier, Neighbors
from khop.graph.needs import Arrays, RuleNeed, WeightSums
from khop.graph.rule import Hop, Rule, RuleBase
from khop.kernels.draw_request import DrawRequest, Kernel
from khop.kernels.sample_reference import (
    row_shares,
    sample_uniform_reference,
    sample_weighted_reference,
    shares_of_edges,
)
from khop.sampling.rules.uniform import UNIFORM
from khop.schema import EdgeType


@dataclass(frozen=True)
class Weighted(RuleBase):
    """Rule that samples edges in proportion to their weights; an edge of weight zero is never sampled.

    With replacement, the mean over draws estimates the sum of (weight / sum of the row's weights) * row.
    All neighbors (fanout -1) have these shares as weights, in training and in exact inference.

    Without replacement this is successive sampling: each pick is in proportion to the remaining weights.
    A mean over such draws is biased: it lies between the weighted mean and the plain mean of all edges
    with weight. With fanout -1, and in exact inference, it is the plain mean. It is unbiased only if the
    weights of a row are equal or 0, as in a mask. Edge types without the column are drawn uniformly.

    Args:
        column: Edge column of weights, zero or more.
        replacement: Sample with replacement; default False.
    Raises:
        ValueError: `column` is not a name, or `replacement` is not a boolean.
    Example:
        >>> nodes = {"item": khop.NodeTable(3)}
        >>> sources, destinations = torch.tensor([0, 1]), torch.tensor([2, 2])
        >>> weights = {"w": torch.tensor([0.0, 1.0])}
        >>> edges = {"item to item": khop.EdgeTable(sources, destinations, weights)}
        >>> graph = khop.open_graph(khop.write_graph(tmp / "graph", nodes, edges))
        >>> sampler = khop.NeighborSampler(graph, [1], rule=khop.Weighted("w"))
        >>> khop.Loader(sampler, [2], batch_size=1).batch(epoch=0, step=0).input_nodes
        tensor([2, 1])
    """

    kernel: ClassVar[Kernel] = Kernel.WEIGHTED
    column: Text
    """Edge column with sampling weights"""
    replacement: bool = False
    """Sample neighbors with replacement. Without it, means are biased unless all positive weights of a node's
    edges are equal"""

    def __post_init__(self) -> None:
        column_name(self.column)
        checked_field(self, "replacement", truth)

    def has_weights(self, fanout: int) -> bool:
        """Return True for all neighbors of draws with replacement: each has its share of the row's weight."""
        return self.replacement and fanout < 0

    def has_shares(self, fanout: int) -> bool:
        """Return True where there are weights: the shares of a row add up to 1."""
        return self.has_weights(fanout)

    def needs(self, edge_type: EdgeType) -> tuple[RuleNeed[Any], ...]:
        """Return the running sums of the weights."""
        return (WeightSums(edge_type, self.column),)

    def plan(
        self, edge_type: EdgeType, frontier: Frontier, hop: Hop, key: DrawKey, arrays: Arrays
    ) -> DrawRequest:
        """Return the draw of an edge type's rows: by the weighted kernel if the type has the column."""
        request = super().plan(edge_type, frontier, hop, key, arrays)
        weigh = _shares if self.has_weights(request.fanout) else None
        kernel = Kernel.UNIFORM if request.sums is None else Kernel.WEIGHTED
        return replace(request, kernel=kernel, weigh=weigh)

    def reference(self, request: DrawRequest) -> Neighbors:
        """Carry out a draw in torch."""
        draw = sample_uniform_reference if request.sums is None else sample_weighted_reference
        return request.weighed(draw(request))

    def exact_weights(self, edge_type: EdgeType, arrays: Arrays) -> Tensor | None:
        """Return each edge's share of its row's weight, with replacement; None without the column."""
        if not self.replacement:
            raise ValueError(
                f"{self}: a mean over draws without replacement estimates no weighted mean of all edges; for "
                f"one, draw by khop.Weighted({self.column!r}, replacement=True)"
            )
        sums = arrays[WeightSums(edge_type, self.column)]
        return None if sums is None else row_shares(arrays.edges[edge_type], sums.values)


def drawn_by(column: str | None, replacement: bool) -> Rule:
    """Return the rule of draws by a column of weights; without a column, of uniform draws."""
    return Weighted(column, replacement) if column else replace(UNIFORM, replacement=replacement)


def weighted_in(rule: Rule) -> Weighted | None:
    """Return the draws by weight of a rule: it, or the inner rule of a sum or a time limit; else None."""
    inner: Rule | None = rule
    while inner is not None and not isinstance(inner, Weighted):
        inner = getattr(inner, "inner", None)
    return inner


def _shares(request: DrawRequest, drawn: Neighbors) -> Tensor:
    """Return each edge's share of the weight of all edges that its row may draw; equal without weights."""
    if request.sums is None:
        return drawn.by_row(drawn.offsets.diff().double().reciprocal())
    assert drawn.edges is not None
    return shares_of_edges(request, drawn.edges, drawn.offsets)
