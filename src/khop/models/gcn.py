"""Graph convolutional networks (Kipf and Welling 2017), over the blocks of any schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from torch import Tensor

from khop.batch import Block
from khop.graph.rule import Rule
from khop.models.encoder import EmbeddedTypes, Encoding, HasTypes, ModelInputs, ModelSizes
from khop.models.layer import (
    NORMALIZED,
    Layer,
    LayerOptions,
    Norm,
    Residual,
    StackOptions,
    Total,
    weighted,
)
from khop.models.node_embedding import EmbeddingUpdate
from khop.models.sage import matrix_layer
from khop.models.stack import Stack
from khop.schema import NodeType


class GCN(Stack):
    """Graph convolutional network, from "Semi-Supervised Classification with Graph Convolutional Networks".

    A layer computes `norm(W h + b + sum over edge types of W_e sum(h_u / sqrt(d_u d_v)))` for each
    destination v and its in-neighbors u, then ReLU and dropout. This is GCNConv of torch_geometric with W
    instead of self loops. The sampler must use `rule`, `khop.SymmetricSum()`, which weights the sampled
    neighbors so that they estimate the sum over all neighbors. W, b and norm are separate for each node type,
    W_e for each edge type. The paper is by Kipf and Welling (2017).

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
        >>> model = khop.models.GCN.for_graph(graph, hidden=64)
        >>> sampler = khop.NeighborSampler(graph, fanouts=[5, 5], rule=model.rule)
        >>> loader = khop.Loader(sampler, graph.split("train"), batch_size=16, columns=["x"])
        >>> model(loader.batch(epoch=0, step=0)).shape
        torch.Size([16, 58])
    """

    rule: Rule = NORMALIZED

    Options = StackOptions
    summary = "graph convolutions"

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
        make_layer = partial(matrix_layer, layer_class=GcnLayer)
        super().__init__(sizes, encoder, layers, LayerOptions(hidden, dropout, norm, residual), make_layer)

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
    ) -> GCN:
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
            outputs: Width of an output row; default: the number of classes.
            embedding: Width of trained embeddings of node types without `column`, as in `SAGE.for_graph`;
                default: such types are an error.
            encoder: "linear" applies a linear layer per node type before the first layer (default "none").
            embedding_update: "dense" (default), "sparse" or "sharded", as in `SAGE.for_graph`.
            embedded_types: Node types with embeddings: "missing" (default), "others" or "all", as in
                `SAGE.for_graph`.
        Returns:
            The model, with new weights from torch's generator.
        Raises:
            ValueError: The graph lacks a type or column, or a setting is out of range.
        """
        inputs = (column, label, outputs, embedding, embedding_update, embedded_types)
        sizes = ModelSizes.of(graph, target, *inputs)
        return cls(sizes, hidden, layers, dropout, norm, residual, encoder)

    @classmethod
    def build(cls, options: StackOptions, context: ModelInputs) -> GCN:
        """Make the model of a run, with new weights from torch's generator."""
        shape = (context.hidden, context.layers, options.dropout, options.norm, options.added)
        return cls(context.sizes, *shape, options.encoder)


class GcnLayer(Layer):
    """A layer over weighted sums of neighbors; ValueError for neighbors without weights."""

    def totals(self, h: Mapping[NodeType, Tensor], block: Block) -> Total:
        """Return a function that adds destination rows and sums of in-neighbors, each times a weight."""
        for edge_type in self.weights.by_edge_type():
            if edge_type in block.adjacencies:
                weighted(edge_type, block.adjacencies[edge_type], "GCN", GCN.rule)
        return super().totals(h, block)
