"""Sum of a layer's terms for the destinations of one type: own rows and aggregates of in-neighbors."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor
from torch.nn.functional import pad

from khop.batch import Adjacency
from khop.kernels.choice import Engine, engine
from khop.kernels.linear import linear, linear_sum
from khop.kernels.linear_blocks import Activation
from khop.kernels.segment import prefix_and_mean, segment_mean
from khop.kernels.segment_weighted import segment_weighted_sum
from khop.kernels.sparse_column import SparseRows
from khop.schema import EdgeType

# Cost of aggregating one number of one edge, in multiply-adds of a matrix product (measured: 3 to 10).
AGGREGATION_COST = 6
MOSTLY_REACHED = 0.7  # above this fraction of destinations with edges, skipping the others does not pay


class LayerSum:
    """Collects the terms, then multiplies and adds them in one operation.

    Every weight takes part in the gradient; a weight without edges has a zero gradient.
    """

    def __init__(self, count: int, bias: Tensor) -> None:
        self._count = count
        self._bias = bias
        self._inputs: list[Tensor] = []
        self._weights: list[Tensor] = []
        self._addend: Tensor | None = None  # sum of terms that need no further product
        self._own: tuple[Tensor, Tensor] | None = None  # source rows, the destinations' own first, and weight

    def add_own(self, h: Tensor, weight: Tensor) -> None:
        """Add the weight times the first rows of h, the destinations' own. Call it before `add_neighbors`."""
        self._own = (h, weight)

    def add_neighbors(self, h: Tensor, adjacency: Adjacency | None, weight: Tensor) -> None:
        """Add the weight times `aggregated` rows of h; 0 for destinations without neighbors."""
        if adjacency is None or not adjacency.indices.numel():
            self._bias = self._bias + linear(h[:0], weight).sum()
            return
        reached = _few_reached(adjacency)
        if reached is not None:
            # Rows without edges end where the row before does.
            few = replace(adjacency, indptr=pad(adjacency.indptr[reached + 1], (1, 0)))
            self._add_to(reached, product_of_neighbors(h, few, weight))
        elif weight_comes_first(h, adjacency, weight):
            self._add(product_of_neighbors(h, adjacency, weight))
        elif adjacency.weight is None and self._own is not None and self._own[0] is h:
            own, mean = prefix_and_mean(h, adjacency.indptr, adjacency.indices)
            self._product(own, self._own[1])
            self._product(mean, weight)
            self._own = None
        else:
            self._product(aggregated(h, adjacency), weight)

    def add_product(self, x: Tensor, weight: Tensor) -> None:
        """Add the weight times rows x, one for each destination."""
        self._product(x, weight)

    def add_rows(self, rows: Tensor) -> None:
        """Add rows that no earlier operation needs for its gradient, one for each destination."""
        self._add(rows)

    def total(self, activation: Activation) -> Tensor:
        """Compute the sum: (destinations, out)."""
        if self._own is not None:
            h, weight = self._own
            self._product(h[: self._count], weight)
        if not self._inputs and self._addend is None:
            self._addend = self._bias.new_zeros(self._count, self._bias.numel())
        return linear_sum(self._inputs, self._weights, self._bias, self._addend, activation)

    def _product(self, x: Tensor, weight: Tensor) -> None:
        if isinstance(x, SparseRows):
            self._add(linear(x, weight))
            return
        self._inputs.append(x)
        self._weights.append(weight)

    def _add(self, rows: Tensor) -> None:
        # In place, because no earlier operation needs the value for its gradient: new memory costs more than
        # the sum.
        self._addend = rows if self._addend is None else self._addend.add_(rows)

    def _add_to(self, reached: Tensor, rows: Tensor) -> None:
        if self._addend is None:
            self._addend = rows.new_zeros(self._count, rows.shape[1])
        self._addend = self._addend.index_add_(0, reached, rows)


def _few_reached(adjacency: Adjacency) -> Tensor | None:
    """Return the destinations with edges if it pays to compute only these, as with many edge types.

    On a device, counting them would wait for all queued work, and shapes would depend on the batch: None.
    """
    if engine(adjacency.indptr.device) is not Engine.NATIVE:
        return None
    reached = adjacency.indptr.diff().nonzero().squeeze(1)
    return reached if reached.numel() <= adjacency.num_dst * MOSTLY_REACHED else None


def weighted(edge_type: EdgeType, adjacency: Adjacency, model: str, rule: str) -> Adjacency:
    """Return the adjacency; ValueError with the remedy, a rule, if it has no weights to sum neighbors by."""
    if adjacency.weight is None:
        kind = {"Sum": "sum", "SymmetricSum": "symmetric-sum"}[rule]
        raise ValueError(
            f"neighbors of {edge_type} have no weights: {model} sums neighbors; draw them by "
            f'rule=khop.{rule}(), in a run file sampler.rule.kind = "{kind}"'
        )
    return adjacency


def aggregated(h: Tensor, adjacency: Adjacency) -> Tensor:
    """Return (destinations, width): the sum of the in-neighbors' rows of h times `Adjacency.weight`.

    Without weights it is their mean. Destinations without neighbors have 0.
    """
    if adjacency.weight is None:
        return segment_mean(h, adjacency.indptr, adjacency.indices)
    return segment_weighted_sum(h, adjacency.weight, adjacency.indptr, adjacency.indices)


def product_of_neighbors(h: Tensor, adjacency: Adjacency, weight: Tensor) -> Tensor:
    """Return (destinations, out): weight times `aggregated` rows of h."""
    if weight_comes_first(h, adjacency, weight):
        return aggregated(linear(h, weight), adjacency)
    return linear(aggregated(h, adjacency), weight)


def weight_comes_first(h: Tensor, adjacency: Adjacency, weight: Tensor) -> bool:
    """Return True if it is cheaper to multiply all sources' rows than to multiply the aggregated rows.

    Aggregation is linear, so both give the same result; the choice depends only on shapes, and sparse rows
    come first always: their aggregates would be dense.
    """
    if isinstance(h, SparseRows):
        return True
    outputs, inputs = weight.shape
    edges = adjacency.indices.numel() * AGGREGATION_COST
    cost_first = adjacency.num_src * inputs * outputs + edges * outputs
    cost_last = adjacency.num_dst * inputs * outputs + edges * inputs
    return cost_first < cost_last
