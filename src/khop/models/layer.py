"""Layer of all models in khop: own rows and means of in-neighbors, each multiplied by a weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor, nn

from khop.arguments import LARGEST_WIDTH, check_word, real_number, whole_number
from khop.batch import Block
from khop.kernels.dropout import dropout
from khop.kernels.relu import relu_
from khop.models.layer_sum import LayerSum
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


class Layer(nn.Module):
    """Layer norm(W h + b + sum over edge types of W_e mean(h of the in-neighbors)), then ReLU and dropout.

    With the residual "add" and equal widths, h itself is added. Every parameter takes part in every batch:
    types without nodes, edge types without edges and edge types that a hop skipped have zero gradients.
    """

    weights: LayerWeights  # a module

    def __init__(
        self, weights: LayerWeights, destinations: tuple[NodeType, ...], options: LayerOptions
    ) -> None:
        super().__init__()
        self.weights = weights
        self.destinations = destinations
        self.options = options

    def forward(self, h: Mapping[NodeType, Tensor], block: Block) -> dict[NodeType, Tensor]:
        """Return (destinations, hidden) per destination type; nothing else is computed."""
        neighbors = self.weights.by_edge_type()
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
        weights = self.weights
        own, norm = weights.own_of(node_type), weights.norm_of(node_type)
        sums = LayerSum(block.dst_counts[node_type], weights.bias_of(node_type))
        if own is not None:
            sums.add_own(h[node_type], own)
        for edge_type, weight in neighbors.items():
            sums.add_neighbors(h[edge_type[0]], block.adjacencies.get(edge_type), weight)
        out = sums.total("relu") if norm is None else relu_(norm(sums.total("none")))
        if self.training:
            out = dropout(out, self.options.dropout)
        if self.options.residual == "add" and own is not None and own.shape[0] == own.shape[1]:
            return out + h[node_type][: out.shape[0]]
        return out


def linear_weight(outputs: int, inputs: int) -> nn.Parameter:
    """Make a weight with the initialization of torch's linear layer."""
    return nn.Parameter(nn.Linear(inputs, outputs, bias=False).weight)
