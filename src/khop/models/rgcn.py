"""Relational graph convolutions (Schlichtkrull et al. 2018), over the blocks of any schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from khop.models.layer import Layer, LayerOptions, Norm, Residual, linear_weight
from khop.models.names import parameter_name
from khop.models.node_embedding import EmbeddingUpdate
from khop.models.sizes import EmbeddedTypes, HasTypes, ModelSizes
from khop.models.stack import Stack
from khop.schema import EdgeType, NodeType


class RGCN(Stack):
    """R-GCN with a linear encoder per node type below and a linear head on top.

    A layer computes norm(W h + b + sum over edge types of W_e mean(h of the in-neighbors)) for each
    destination, then ReLU and dropout, plus h itself with `residual="add"`. All node types share W, b and
    norm. Each edge type has its own W_e. With `bases` above 0, W_e is a learned mixture of `bases` matrices
    that all edge types share: fewer parameters if many edge types have few edges.
    """

    def __init__(
        self,
        sizes: ModelSizes,
        hidden: int = 256,
        layers: int = 2,
        dropout: float = 0.0,
        norm: Norm = "none",
        residual: Residual = "none",
        bases: int = 0,
    ) -> None:
        if bases < 0:
            raise ValueError(f"bases {bases}: must be at least 1, or 0 for a matrix per edge type")

        def make_layer(
            widths: Mapping[NodeType, int],
            destinations: tuple[NodeType, ...],
            edge_types: tuple[EdgeType, ...],
            options: LayerOptions,
        ) -> Layer:
            has_own = tuple(node_type for node_type in destinations if node_type in widths)
            return Layer(RgcnWeights(has_own, edge_types, options, bases), destinations, options)

        super().__init__(sizes, "linear", layers, LayerOptions(hidden, dropout, norm, residual), make_layer)

    @classmethod
    def for_graph(
        cls,
        graph: HasTypes,
        hidden: int = 256,
        layers: int = 2,
        target: NodeType | Sequence[NodeType] | None = None,
        column: str = "x",
        dropout: float = 0.0,
        norm: Norm = "none",
        residual: Residual = "none",
        label: str | None = None,
        outputs: int | None = None,
        embedding: int | None = None,
        bases: int = 0,
        embedding_update: EmbeddingUpdate = "dense",
        embedded_types: EmbeddedTypes = "missing",
    ) -> RGCN:
        """Make an R-GCN that fits the graph; the other arguments are as in `SAGE.for_graph`."""
        inputs = (column, label, outputs, embedding, embedding_update, embedded_types)
        sizes = ModelSizes.of(graph, target, *inputs)
        return cls(sizes, hidden, layers, dropout, norm, residual, bases)


class RgcnWeights(nn.Module):
    """One weight, bias and norm for all node types; a weight per edge type, or a mixture of `bases`."""

    def __init__(
        self,
        has_own: tuple[NodeType, ...],
        edge_types: tuple[EdgeType, ...],
        options: LayerOptions,
        bases: int,
    ) -> None:
        super().__init__()
        hidden = options.hidden
        self._has_own = has_own
        self._edge_types = edge_types
        self.own = linear_weight(hidden, hidden) if has_own else None
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.norm = nn.LayerNorm(hidden) if options.norm == "layer" else None
        self.bases = nn.ParameterList(
            [linear_weight(hidden, hidden) for _ in range(bases if edge_types else 0)]
        )
        own_weights = () if bases else edge_types
        self.neighbors = nn.ParameterDict(
            {parameter_name(*t): linear_weight(hidden, hidden) for t in own_weights}
        )
        self.shares = nn.Parameter(torch.empty(len(edge_types), bases)) if len(self.bases) else None
        if self.shares is not None:
            nn.init.normal_(self.shares, std=bases**-0.5)  # so that a mixture is as large as one weight

    def own_of(self, node_type: NodeType) -> Tensor | None:
        """Weight of all node types; None for a type without rows."""
        return self.own if node_type in self._has_own else None

    def bias_of(self, node_type: NodeType) -> Tensor:
        """Bias of all node types."""
        return self.bias

    def by_edge_type(self) -> Mapping[EdgeType, Tensor]:
        """Weights by edge type, or mixtures of the bases."""
        if self.shares is None:
            return {t: self.neighbors[parameter_name(*t)] for t in self._edge_types}
        mixed = torch.einsum("eb,boi->eoi", self.shares, torch.stack(list(self.bases)))
        return dict(zip(self._edge_types, mixed, strict=True))

    def norm_of(self, node_type: NodeType) -> nn.Module | None:
        """Norm of all node types, or None."""
        return self.norm
