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
    """GraphSAGE with mean aggregation, from "Inductive Representation Learning on Large Graphs" (2017).

    A layer computes `norm(W h + b + sum over edge types of W_e mean(h of the in-neighbors))` for each
    destination, then ReLU and dropout. W, b and norm are separate for each node type, W_e for each edge type.
    The output is a linear head over the last layer. Only types that can reach a target have parameters.
    Integer and half-precision columns are cast to the parameters' dtype.

    Args:
        sizes: Types, widths and counts of the graph. `for_graph` derives them.
        hidden: Width of a layer's output (default 256).
        layers: Number of layers, which is the number of blocks of a batch (default 2).
        dropout: Dropout probability of hidden values in training (default 0).
        norm: "layer" for layer normalization in each layer, "none" (default) for no normalization.
        residual: "add" adds the input of a layer to its output if the widths are equal (default "none").
        encoder: "linear" applies a linear layer per node type before the first layer (default "none").
    Raises:
        ValueError: A setting is out of range, or a node type lacks the input column.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> model = khop.models.SAGE.for_graph(graph, hidden=64, layers=2)
        >>> loader = khop.Loader(khop.NeighborSampler(graph, [5, 5]), graph.split("train"), 16, columns=["x"])
        >>> model(loader.batch(epoch=0, step=0)).shape
        torch.Size([16, 58])
    """

    Options = StackOptions
    summary = "GraphSAGE with mean aggregation"
    other_kinds: ClassVar[Mapping[str, Mapping[str, str]]] = {"graphsage": {}}
    multiplies_destinations = (
        True  # only this model: other layers multiply the rows of sources, or weigh edges
    )

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
        super().__init__(sizes, encoder, layers, LayerOptions(hidden, dropout, norm, residual), matrix_layer)

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
        """Make a model with the types and widths of a graph.

        Args:
            graph: Graph whose types, columns and counts determine the shapes of the parameters.
            hidden: Width of a layer's output (default 256).
            layers: Number of layers (default 2).
            target: Node type of the seeds; default: the only type with a label. A list of types makes an
                encoder, which returns a mapping from type to rows.
            column: Input column of nodes (default "x").
            dropout: Dropout probability of hidden values in training (default 0).
            norm: "layer" for layer normalization in each layer, or "none" (default).
            residual: "add" adds the input of a layer to its output if the widths are equal (default "none").
            label: Label column of a classifier; default: the only one of the target.
            outputs: Width of an output row, for an encoder or a named target; default: the number of classes.
            embedding: Width of trained embeddings of node types without `column`. With 0, these types have no
                input, and send no messages in the first layer. Default: such types are an error.
            encoder: "linear" applies a linear layer per node type before the first layer (default "none").
            embedding_update: "dense" (default) for `torch.nn.Embedding`; "sparse" or "sharded" for
                `khop.models.NodeEmbedding`, trained by `khop.RowAdam`.
            embedded_types: Node types with embeddings: "missing" (default): types without `column`; "others":
                such types except targets; "all".
        Returns:
            The model, with new weights from torch's generator.
        """
        inputs = (column, label, outputs, embedding, embedding_update, embedded_types)
        sizes = ModelSizes.of(graph, target, *inputs)
        return cls(sizes, hidden, layers, dropout, norm, residual, encoder)

    @classmethod
    def build(cls, options: StackOptions, context: ModelInputs) -> SAGE:
        """Make the model of a run, with new weights from torch's generator."""
        shape = (context.hidden, context.layers, options.dropout, options.norm, options.added)
        return cls(context.sizes, *shape, options.encoder)


def matrix_layer(
    widths: Mapping[NodeType, int],
    destinations: tuple[NodeType, ...],
    edge_types: tuple[EdgeType, ...],
    options: LayerOptions,
    layer_class: type[Layer] = Layer,
) -> Layer:
    """Make a layer with a matrix per node type and per edge type."""
    return layer_class(SageWeights(widths, destinations, edge_types, options), destinations, options)


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
