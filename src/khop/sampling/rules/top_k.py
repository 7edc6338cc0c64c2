"""Rule that selects the neighbors with the largest weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NoReturn

from torch import Tensor

from khop.arguments import column_name
from khop.components import Text
from khop.draw import DrawKey, Frontier, Neighbors
from khop.graph.layout import edge_column
from khop.graph.needs import Arrays, EdgeColumn, RuleArrays, RuleNeed, derived_name
from khop.graph.rule import Hop, RuleBase
from khop.kernels.draw_request import DrawRequest, Kernel
from khop.kernels.edge_arrays import descending_keys
from khop.kernels.sample_reference import sample_smallest_reference, sample_uniform_reference
from khop.schema import EdgeType, Schema


class Descending(RuleNeed[Tensor]):
    """Numbers that sort a column of the edges from its largest value, int64 (edges)."""

    by_edge = True

    def made(self, arrays: RuleArrays) -> Tensor | None:
        """Compute the numbers; None without the column."""
        edge_type, column = self.edge_type, self.column
        values = arrays[EdgeColumn(edge_type, column)]
        if values is None:
            return None

        def make() -> Tensor:
            try:
                return descending_keys(values)
            except ValueError as error:
                raise ValueError(f"column {column!r}: {error}") from error

        name, files = derived_name(edge_type, f"descending.{column}"), (edge_column(edge_type, column),)
        return arrays.derived.vector(name, values.numel(), make, files)


@dataclass(frozen=True)
class TopK(RuleBase):
    """Rule that takes the edges with the largest values of a column.

    Ties are broken by the order of edges in the row. Nothing is random, so a mean over the neighbors does
    not estimate a mean over all neighbors. Exact inference uses the same edges, with the fanout of the
    layer in training. Edge types without the column are drawn uniformly; exact inference uses all their
    edges.

    Args:
        column: Edge column of values, which may be negative or infinite.
    Raises:
        ValueError: `column` is not a name.
    Example:
        >>> nodes = {"item": khop.NodeTable(3)}
        >>> sources, destinations = torch.tensor([0, 1]), torch.tensor([2, 2])
        >>> values = {"value": torch.tensor([-1.0, 4.0])}
        >>> edges = {"item to item": khop.EdgeTable(sources, destinations, values)}
        >>> graph = khop.open_graph(khop.write_graph(tmp / "graph", nodes, edges))
        >>> sampler = khop.NeighborSampler(graph, [1], rule=khop.TopK("value"))
        >>> khop.Loader(sampler, [2], batch_size=1).batch(epoch=0, step=0).input_nodes
        tensor([2, 1])
    """

    kernel: ClassVar[Kernel] = Kernel.SMALLEST
    column: Text
    """Edge column that the rule reads: the values of top-k, the relations of relation-mean, or sampling
    weights"""

    def __post_init__(self) -> None:
        column_name(self.column)

    def needs(self, edge_type: EdgeType) -> tuple[RuleNeed[Any], ...]:
        """Return the numbers that sort the column."""
        return (Descending(edge_type, self.column),)

    def plan(
        self, edge_type: EdgeType, frontier: Frontier, hop: Hop, key: DrawKey, arrays: Arrays
    ) -> DrawRequest:
        """Return the draw of an edge type's rows: by the column if the type has it."""
        request = super().plan(edge_type, frontier, hop, key, arrays)
        order = arrays[Descending(edge_type, self.column)]
        return replace(request, order=order, kernel=Kernel.UNIFORM if order is None else Kernel.SMALLEST)

    def reference(self, request: DrawRequest) -> Neighbors:
        """Carry out a draw in torch."""
        draw = sample_uniform_reference if request.order is None else sample_smallest_reference
        return draw(request)

    def exact_weights(self, edge_type: EdgeType, arrays: Arrays) -> NoReturn:
        """Raise ValueError, because the largest edges do not estimate a mean over all edges."""
        raise ValueError(
            f"{self}: nothing is drawn, so a mean over some edges does not estimate the mean over all edges; "
            "exact inference uses the fanouts of training"
        )

    def exact_fanout(self, schema: Schema, edge_type: EdgeType, fanout: int) -> int:
        """Return the fanout of training; -1 for an edge type without the column."""
        return fanout if self.column in schema.columns.get(edge_type, {}) else -1
