"""GraphSAGE with the mean of neighbors (Hamilton, Ying, Leskovec 2017), over the blocks of any schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from khop.models.encoder import EmbeddedTypes, Encoding, HasTypes, ModelInputs, ModelSizes
from khop.models.layer import (
    Layer,
    LayerOptions,
    Norm,
    Residual,
    StackOptions,
    layer_norms,
    linear_weight,
    parameter_name,
)
from khop.models.node_embedding import EmbeddingUpdate
from khop.models.stack import Stack
from khop.schema import EdgeType, NodeType


class SAGE(Stack):
    """GraphSAGE with a linear head on top.

    A layer computes norm(W h + b + sum over edge types of W_e mean(h of the in-neighbors)) for each
    destination, then ReLU and dropout, plus h itself with `residual="add"` and equal widths. Every node
    type has its own W, b and norm, every edge type its own W_e; only types that can reach the target have
    parameters. Integer and half-precision columns are cast to the parameters' dtype.
    """

    Options = StackOptions
    summary = "GraphSAGE with mean aggregation"
    other_kinds: ClassVar[Mapping[str, Mapping[str, str]]] = {"graphsage": {}}
    multiplies_destinations = True  # alone: other layers multiply the rows of sources, or weigh edges

    def __init__(
        self,
        sizes: ModelSizes,
        hidden: int = 256,
        layers: int = 2,
        dropout: float = 0.0,
        norm: Norm = "none",
        residual: Residual = "none",
        encoder: Encoding = "none",
    ) -> None:
        super().__init__(sizes, encoder, layers, LayerOptions(hidden, dropout, norm, residual), _layer)

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
        encoder: Encoding = "none",
        embedding_update: EmbeddingUpdate = "dense",
        embedded_types: EmbeddedTypes = "missing",
    ) -> SAGE:
        """Make a SAGE that fits the graph and classifies `target` by `label`, by default the only ones.

        With a list of targets it is an encoder: it returns a row of `outputs` numbers per seed, in a mapping
        by type. Types without `column` have an embedding of `embedding` numbers per node. If that is 0 they
        have none, and send no messages before the first layer computes rows for them. Embeddings that are not
        dense are trained by `khop.RowAdam`: see `khop.models.NodeEmbedding`.
        """
        inputs = (column, label, outputs, embedding, embedding_update, embedded_types)
        sizes = ModelSizes.of(graph, target, *inputs)
        return cls(sizes, hidden, layers, dropout, norm, residual, encoder)

    @classmethod
    def build(cls, options: StackOptions, context: ModelInputs) -> SAGE:
        """Make the model of a run, with new weights from torch's generator."""
        shape = (context.hidden, context.layers, options.dropout, options.norm, options.added)
        return cls(context.sizes, *shape, options.encoder)


def _layer(
    widths: Mapping[NodeType, int],
    destinations: tuple[NodeType, ...],
    edge_types: tuple[EdgeType, ...],
    options: LayerOptions,
) -> Layer:
    return Layer(SageWeights(widths, destinations, edge_types, options), destinations, options)


class SageWeights(nn.Module):
    """Separate weights, biases and norms for every destination type; a weight for every edge type."""

    def __init__(
        self,
        widths: Mapping[NodeType, int],
        destinations: tuple[NodeType, ...],
        edge_types: tuple[EdgeType, ...],
        options: LayerOptions,
    ) -> None:
        super().__init__()
        self._edge_types = {edge_type: parameter_name(*edge_type) for edge_type in edge_types}
        hidden, names = options.hidden, {t: parameter_name(t) for t in destinations}
        own = {name: linear_weight(hidden, widths[t]) for t, name in names.items() if t in widths}
        self.own = nn.ParameterDict(own)
        self.neighbors = nn.ParameterDict(
            {name: linear_weight(hidden, widths[t[0]]) for t, name in self._edge_types.items()}
        )
        self.bias = nn.ParameterDict({name: nn.Parameter(torch.zeros(hidden)) for name in names.values()})
        self.norm = layer_norms(destinations, options)

    def own_of(self, node_type: NodeType) -> Tensor | None:
        """Weight of the node type; None if it has no rows."""
        own: Tensor | None = self.own.get(parameter_name(node_type))
        return own

    def bias_of(self, node_type: NodeType) -> Tensor:
        """Bias of the node type."""
        bias: Tensor = self.bias[parameter_name(node_type)]
        return bias

    def by_edge_type(self) -> Mapping[EdgeType, Tensor]:
        """Weights by edge type."""
        return {edge_type: self.neighbors[name] for edge_type, name in self._edge_types.items()}

    def norm_of(self, node_type: NodeType) -> nn.Module | None:
        """Norm of the node type, or None."""
        name = parameter_name(node_type)
        if name not in self.norm:
            return None
        return self.norm[name]
