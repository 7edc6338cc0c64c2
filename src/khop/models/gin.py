"""Graph isomorphism networks (Xu et al. 2019), over the blocks of any schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from khop.batch import Block
from khop.graph.rule import Rule
from khop.kernels.linear_blocks import Activation
from khop.models.encoder import EmbeddedTypes, HasTypes, ModelInputs, ModelSizes
from khop.models.layer import (
    BlockLayer,
    LayerOptions,
    Norm,
    Residual,
    StackOptions,
    Total,
    aggregated,
    layer_norms,
    parameter_name,
    weighted,
)
from khop.models.node_embedding import EmbeddingUpdate
from khop.models.stack import Stack
from khop.sampling.rules.sum import Sum
from khop.schema import EdgeType, NodeType


class GIN(Stack):
    """Graph isomorphism network, from "How Powerful are Graph Neural Networks?" (2019).

    A layer computes `norm(MLP((1 + eps) h + sum of the in-neighbors' h over all edge types))` for each
    destination, then ReLU and dropout. The MLP of two linear layers and the learned eps are separate for each
    node type. A linear layer per node type encodes the input. The sampler must use `rule`, `khop.Sum()`,
    which weights the sampled neighbors so that they estimate the sum over all neighbors.

    Args:
        sizes: Types, widths and counts of the graph. `for_graph` derives them.
        hidden: Width of a layer's output (default 256).
        layers: Number of layers, which is the number of blocks of a batch (default 2).
        dropout: Dropout probability of hidden values in training (default 0).
        norm: "layer" for layer normalization in each layer, "none" (default) for no normalization.
        residual: "add" adds the input of a layer to its output (default "none").
    Raises:
        ValueError: A setting is out of range, or a node type lacks the input column.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> model = khop.models.GIN.for_graph(graph, hidden=64)
        >>> sampler = khop.NeighborSampler(graph, fanouts=[5, 5], rule=model.rule)
        >>> loader = khop.Loader(sampler, graph.split("train"), batch_size=16, columns=["x"])
        >>> model(loader.batch(epoch=0, step=0)).shape
        torch.Size([16, 58])
    """

    rule: Rule = Sum()

    Options = StackOptions
    summary = "graph isomorphism"

    def __init__(
        self,
        sizes: ModelSizes,
        hidden: int = 256,
        layers: int = 2,
        dropout: float = 0.0,
        norm: Norm = "none",
        residual: Residual = "none",
    ) -> None:
        super().__init__(sizes, "linear", layers, LayerOptions(hidden, dropout, norm, residual), GinLayer)

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
        embedding_update: EmbeddingUpdate = "dense",
        embedded_types: EmbeddedTypes = "missing",
    ) -> GIN:
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
            residual: "add" adds the input of a layer to its output (default "none").
            label: Label column of a classifier; default: the only one of the target.
            outputs: Width of an output row; default: the number of classes.
            embedding: Width of trained embeddings of node types without `column`, as in `SAGE.for_graph`;
                default: such types are an error.
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
        return cls(sizes, hidden, layers, dropout, norm, residual)

    @classmethod
    def build(cls, options: StackOptions, context: ModelInputs) -> GIN:
        """Make the model of a run, with new weights from torch's generator."""
        return cls(
            context.sizes, context.hidden, context.layers, options.dropout, options.norm, options.added
        )


class GinLayer(BlockLayer):
    """An MLP of destination rows and sums of in-neighbors, per destination type."""

    def __init__(
        self,
        widths: Mapping[NodeType, int],
        destinations: tuple[NodeType, ...],
        edge_types: tuple[EdgeType, ...],
        options: LayerOptions,
    ) -> None:
        super().__init__(destinations, options)
        self.edge_types = edge_types
        hidden, names = options.hidden, [parameter_name(t) for t in destinations]
        has_own = [parameter_name(t) for t in destinations if t in widths]
        self.eps = nn.ParameterDict({name: nn.Parameter(torch.zeros(())) for name in has_own})
        self.mlp = nn.ModuleDict(
            {
                name: nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
                for name in names
            }
        )
        self.norm = layer_norms(destinations, options)

    def totals(self, h: Mapping[NodeType, Tensor], block: Block) -> Total:
        """Return a function that applies the MLP of a destination type to its sum."""

        def total(node_type: NodeType, activation: Activation) -> Tensor:
            out: Tensor = self.mlp[parameter_name(node_type)](self._sum(node_type, h, block))
            return out.relu() if activation == "relu" else out

        return total

    def _sum(self, node_type: NodeType, h: Mapping[NodeType, Tensor], block: Block) -> Tensor:
        name, count = parameter_name(node_type), block.dst_counts[node_type]
        total: Tensor = next(self.mlp[name].parameters()).new_zeros(count, self.options.hidden)
        if name in self.eps:
            total = h[node_type][:count] * (1 + self.eps[name])
        for edge_type in self.edge_types:
            if edge_type[2] != node_type:
                continue
            adjacency = block.adjacencies.get(edge_type)
            if adjacency is None:  # the rows take part anyway, because their parameters need a gradient
                total = total + h[edge_type[0]][:0].sum()
                continue
            total = total + aggregated(h[edge_type[0]], weighted(edge_type, adjacency, "GIN", GIN.rule))
        return total
