"""The layer that all models here are made of: own rows and means of in-neighbours, each times a weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from torch import Tensor, nn
from torch.nn.functional import pad

from khop.batch import Adjacency, Block
from khop.kernels.dropout import dropout
from khop.kernels.linear import linear
from khop.kernels.segment import segment_mean
from khop.schema import EdgeType, NodeType

Norm = Literal["none", "layer"]

# What aggregating one number of one edge costs, in multiply-adds of a matrix product (measured: 3 to 10).
AGGREGATION_COST = 6
MOSTLY_REACHED = 0.7  # the share of destinations with edges from which leaving out the others does not pay


@dataclass(frozen=True)
class LayerOptions:
    """What all layers of a model have in common; checked when made."""

    hidden: int = 256  # width of a layer's output
    dropout: float = 0.0
    norm: Norm = "none"
    residual: bool = False

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise ValueError(f"hidden {self.hidden}: must be at least 1")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout {self.dropout}: must be at least 0 and below 1")
        if self.norm not in get_args(Norm):
            raise ValueError(f"norm {self.norm!r}: must be one of {get_args(Norm)}")


class LayerWeights(Protocol):
    """The parameters of one layer: which types share what is all that models differ in."""

    def own_of(self, node_type: NodeType) -> Tensor | None:
        """(out, in): for the destinations' own rows; None where they have none."""
        ...

    def bias_of(self, node_type: NodeType) -> Tensor:
        """(out)"""
        ...

    def by_edge_type(self) -> Mapping[EdgeType, Tensor]:
        """(out, in): for the mean of the in-neighbours, of every edge type that the layer follows."""
        ...

    def norm_of(self, node_type: NodeType) -> nn.Module | None:
        """What normalises the rows, if anything does."""
        ...


class Layer(nn.Module):
    """norm(W h + b + sum over edge types of W_e mean(h of the in-neighbours)), then relu and dropout.

    Where `residual` and the widths agree, h itself is added. Every parameter takes part in every batch: of
    types without nodes, and of edge types without edges or that a hop skipped, gradients are zero.
    """

    def __init__(self, weights: nn.Module, destinations: tuple[NodeType, ...], options: LayerOptions) -> None:
        super().__init__()
        self.weights = weights
        self.destinations = destinations
        self.options = options

    def forward(self, h: Mapping[NodeType, Tensor], block: Block) -> dict[NodeType, Tensor]:
        """(destinations, hidden) per destination type; nothing else is computed."""
        weights: LayerWeights = self.weights  # type: ignore[assignment]
        neighbors = weights.by_edge_type()
        out = {}
        for node_type in self.destinations:
            if node_type in block.dst_counts:
                into = {t: weight for t, weight in neighbors.items() if t[2] == node_type}
                out[node_type] = self._rows(node_type, h, block, into)
        return out

    def _rows(
        self,
        node_type: NodeType,
        h: Mapping[NodeType, Tensor],
        block: Block,
        neighbors: Mapping[EdgeType, Tensor],
    ) -> Tensor:
        weights: LayerWeights = self.weights  # type: ignore[assignment]
        count, own, bias = block.dst_counts[node_type], weights.own_of(node_type), weights.bias_of(node_type)
        before = None if own is None else h[node_type][:count]
        # In place where nothing before keeps the value for its gradient: new memory costs more than the sum.
        out = bias.repeat(count, 1) if own is None or before is None else linear(before, own, bias)
        for edge_type, weight in neighbors.items():
            adjacency = block.adjacencies.get(edge_type)
            if adjacency is not None and adjacency.indices.numel():
                add_mean_of_neighbors(out, h[edge_type[0]], adjacency, weight)
            else:
                out += _nothing(h[edge_type[0]], weight)
        norm = weights.norm_of(node_type)
        out = (out if norm is None else norm(out)).relu_()
        if self.training:
            out = dropout(out, self.options.dropout)
        if self.options.residual and before is not None and before.shape == out.shape:
            return out + before
        return out


def add_mean_of_neighbors(out: Tensor, h: Tensor, adjacency: Adjacency, weight: Tensor) -> None:
    """Add, in place, the weight times the mean of the in-neighbours' rows of h to each destination with any.

    Of many edge types each reaches few destinations: those alone are computed where they are the lesser part.
    """
    reached = adjacency.indptr.diff().nonzero().squeeze(1)
    if reached.numel() > adjacency.num_dst * MOSTLY_REACHED:
        out += mean_of_neighbors(h, adjacency, weight)
        return
    ends = pad(adjacency.indptr[reached + 1], (1, 0))  # rows without edges end where the row before does
    few = Adjacency(ends, adjacency.indices, adjacency.num_src)
    out.index_add_(0, reached, mean_of_neighbors(h, few, weight).to(out.dtype))


def mean_of_neighbors(h: Tensor, adjacency: Adjacency, weight: Tensor) -> Tensor:
    """(destinations, out): the weight times the mean of the in-neighbours' rows of h; 0 where there are none.

    The mean is linear, so the weight may come before or after it: the shapes alone decide which costs less.
    """
    outputs, inputs = weight.shape
    edges = adjacency.indices.numel() * AGGREGATION_COST
    cost_before = adjacency.num_src * inputs * outputs + edges * outputs
    cost_after = adjacency.num_dst * inputs * outputs + edges * inputs
    if cost_before < cost_after:
        return segment_mean(linear(h, weight), adjacency.indptr, adjacency.indices)
    return linear(segment_mean(h, adjacency.indptr, adjacency.indices), weight)


def linear_weight(outputs: int, inputs: int) -> nn.Parameter:
    """A weight as torch's linear layer would start with."""
    return nn.Parameter(nn.Linear(inputs, outputs, bias=False).weight)


def _nothing(h: Tensor, weight: Tensor) -> Tensor:
    """A zero that h and the weight take part in: their gradients are zeros, not None."""
    return linear(h[:0], weight).sum()
