"""Draws of neighbors by weight."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from khop.arguments import column_name, truth
from khop.draw import DrawKey, Frontier, Neighbors
from khop.kernels.draw_request import DrawRequest, Kernel
from khop.kernels.sample_uniform import sample_uniform_reference
from khop.kernels.sample_weighted import row_shares, sample_weighted_reference
from khop.rules.rule import DrawArrays, Hop, Need, NeedKind, RuleBase
from khop.schema import EdgeType


@dataclass(frozen=True)
class Weighted(RuleBase):
    """Edges are drawn in proportion to their weights; an edge of weight zero is never drawn.

    Without replacement this is successive sampling: each pick is in proportion to the remaining weights. Edge
    types without the column are drawn uniformly.
    """

    kernel: ClassVar[Kernel] = Kernel.WEIGHTED
    column: str  # an edge column: one number each, zero or more
    replacement: bool = False

    def __post_init__(self) -> None:
        column_name(self.column)
        truth("replacement", self.replacement)

    def needs(self, edge_type: EdgeType) -> tuple[Need, ...]:
        """Return the running sums of the weights."""
        return (Need(NeedKind.WEIGHT_SUMS, edge_type, self.column),)

    def plan(
        self, edge_type: EdgeType, frontier: Frontier, hop: Hop, key: DrawKey, arrays: DrawArrays
    ) -> DrawRequest:
        """Return the draw of an edge type's rows: by the weighted kernel if the type has the column."""
        request = super().plan(edge_type, frontier, hop, key, arrays)
        return request if request.sums is not None else replace(request, kernel=Kernel.UNIFORM)

    def reference(self, request: DrawRequest) -> Neighbors:
        """Carry out a draw in torch."""
        return (sample_uniform_reference if request.sums is None else sample_weighted_reference)(request)

    def exact_weights(self, edge_type: EdgeType, arrays: DrawArrays) -> Tensor | None:
        """Return each edge's share of its row's weight, with replacement; None without the column."""
        if not self.replacement:
            raise ValueError(
                f"{self}: a mean over draws without replacement estimates no weighted mean of all edges; "
                f"train with khop.Weighted({self.column!r}, replacement=True), or sample"
            )
        sums = arrays.weight_sums(edge_type, self.column)
        return None if sums is None else row_shares(arrays.edges[edge_type], sums.values)
