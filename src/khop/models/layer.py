"""Layers of all models in khop: norm, ReLU, dropout and residual over a sum, and the sum of most models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor, nn

from khop.arguments import LARGEST_WIDTH, check_word, real_number, whole_number
from khop.batch import Block
from khop.kernels.dropout import dropout
from khop.kernels.linear_blocks import Activation
from khop.kernels.relu import relu_
from khop.models.layer_sum import LayerSum
from khop.models.names import parameter_name
from khop.schema import EdgeType, NodeType

Norm = Literal["none", "layer"]
Residual = Literal["none", "add"]


@dataclass(frozen=True)
class LayerOptions:
    """Options shared by all layers of a model, validated on creation."""

    hidden: int = 256  # width of a layer's output
    dropout: float = 0.0
    norm: Norm = "none"
    residual: Residual = "none"  # or add the rows themselves, if the widths are equal

    def __post_init__(self) -> None:
        if whole_number("hidden", self.hidden, most=LARGEST_WIDTH) < 1:
            raise ValueError(f"hidden {self.hidden}: must be at least 1")
        if not 0.0 <= real_number("dropout", self.dropout) < 1.0:
            raise ValueError(f"dropout {self.dropout}: must be at least 0 and below 1")
        check_word("norm", self.norm, Norm)
        check_word("residual", self.residual, Residual)


class LayerWeights(Protocol):
    """Parameters of one layer; models differ only in the types that share parameters."""

    def own_of(self, node_type: NodeType) -> Tensor | None:
        """Weight (out, in) for the destinations' own rows; None if they have none."""
        ...

    def bias_of(self, node_type: NodeType) -> Tensor:
        """Bias (out)."""
        ...

    def by_edge_type(self) -> Mapping[EdgeType, Tensor]:
        """Weights (out, in) for the mean of in-neighbors, for every edge type that the layer follows."""
        ...

    def norm_of(self, node_type: NodeType) -> nn.Module | None:
        """Normalization of the rows, or None."""
        ...


Total = Callable[[NodeType, Activation], Tensor]  # rows of a destination type, the activation applied


class BlockLayer(nn.Module, ABC):
    """Layer norm(sum), then ReLU and dropout, over the destinations of a block; models differ in the sum.

    A subclass may set `activation` to "none" instead of ReLU.

    With the residual "add", the destinations' own input rows are added if the widths are equal.
    """

    norm: nn.ModuleDict  # normalizations by parameter name of the destination type
    activation: Activation = "relu"

    def __init__(self, destinations: tuple[NodeType, ...], options: LayerOptions) -> None:
        super().__init__()
        self.destinations = destinations
        self.options = options

    @abstractmethod
    def totals(self, h: Mapping[NodeType, Tensor], block: Block) -> Total:
        """Return a function that computes the sum of a destination type: (destinations, hidden)."""

    def norm_of(self, node_type: NodeType) -> nn.Module | None:
        """Return the normalization of a destination type's sum, or None: by default from `norm`."""
        name = parameter_name(node_type)
        if name not in self.norm:
            return None
        return self.norm[name]

    def forward(self, h: Mapping[NodeType, Tensor], block: Block) -> dict[NodeType, Tensor]:
        """Return (destinations, hidden) per destination type; nothing else is computed."""
        total = self.totals(h, block)
        present = (node_type for node_type in self.destinations if node_type in block.dst_counts)
        return {node_type: self._finished(node_type, total, h.get(node_type)) for node_type in present}

    def _finished(self, node_type: NodeType, total: Total, rows: Tensor | None) -> Tensor:
        norm = self.norm_of(node_type)
        out = total(node_type, self.activation if norm is None else "none")
        if norm is not None:
            out = relu_(norm(out)) if self.activation == "relu" else norm(out)
        if self.training:
            out = dropout(out, self.options.dropout)
        if self.options.residual == "add" and rows is not None and rows.shape[1] == out.shape[1]:
            return out + rows[: out.shape[0]]
        return out


class Layer(BlockLayer):
    """Layer norm(W h + b + sum over edge types of W_e mean(h of the in-neighbors)), then ReLU and dropout.

    With the residual "add" and equal widths, h itself is added. Every parameter takes part in every batch:
    types without nodes, edge types without edges and edge types that a hop skipped have zero gradients.
    """

    weights: LayerWeights  # a module

    def __init__(
        self, weights: LayerWeights, destinations: tuple[NodeType, ...], options: LayerOptions
    ) -> None:
        super().__init__(destinations, options)
        self.weights = weights

    def norm_of(self, node_type: NodeType) -> nn.Module | None:
        """Return the normalization of the weights."""
        return self.weights.norm_of(node_type)

    def totals(self, h: Mapping[NodeType, Tensor], block: Block) -> Total:
        """Return a function that adds own rows and aggregates of in-neighbors, each times a weight."""
        weights, neighbors = self.weights, self.weights.by_edge_type()

        def total(node_type: NodeType, activation: Activation) -> Tensor:
            sums = LayerSum(block.dst_counts[node_type], weights.bias_of(node_type))
            own = weights.own_of(node_type)
            if own is not None:
                sums.add_own(h[node_type], own)
            for edge_type, weight in neighbors.items():
                if edge_type[2] == node_type:
                    sums.add_neighbors(h[edge_type[0]], block.adjacencies.get(edge_type), weight)
            return sums.total(activation)

        return total


def layer_norms(destinations: Iterable[NodeType], options: LayerOptions) -> nn.ModuleDict:
    """Make a normalization for each destination type, or none if the options say so."""
    normed = destinations if options.norm == "layer" else ()
    return nn.ModuleDict({parameter_name(t): nn.LayerNorm(options.hidden) for t in normed})


def linear_weight(outputs: int, inputs: int) -> nn.Parameter:
    """Make a weight with the initialization of torch's linear layer."""
    return nn.Parameter(nn.Linear(inputs, outputs, bias=False).weight)
