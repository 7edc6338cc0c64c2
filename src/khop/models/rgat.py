"""Relational graph attention (Busbridge et al. 2019) as in MLPerf's graph benchmark, for any schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, linear

from khop.arguments import LARGEST_WIDTH, whole_number
from khop.batch import Adjacency, Block
from khop.components import Count
from khop.kernels.linear_blocks import Activation
from khop.kernels.segment_attention import segment_attention
from khop.models.encoder import EmbeddedTypes, Encoding, HasTypes, ModelInputs, ModelSizes
from khop.models.gat import SLOPE
from khop.models.layer import BlockLayer, LayerOptions, NormOptions, Total, linear_weight, parameter_name
from khop.models.node_embedding import EmbeddingUpdate
from khop.models.stack import Stack
from khop.schema import EdgeType, NodeType


@dataclass(frozen=True)
class RgatOptions(NormOptions):
    """Options of an R-GAT, as a run sets them."""

    heads: Count = 4
    """Number of attention heads. Each head has the width hidden / heads"""
    encoder: Literal["none", "linear"] = "none"
    """Layer between the input and the model's first layer: none, or a linear layer per node type (linear)"""

    def __post_init__(self) -> None:
        if self.norm != "none":
            raise ValueError(f"norm is {self.norm!r}: rgat has no normalization; leave it out")


class RGAT(Stack):
    """Relational graph attention network, from "Relational Graph Attention Networks" (2019).

    A layer is torch_geometric's `HeteroConv` of `GATConv(add_self_loops=False)`: the sum over edge types of
    attention over the in-neighbors, without a weight for the destination's own row. Leaky ReLU (slope 0.01)
    and dropout follow each layer except the last. It is the model of MLPerf's graph benchmark. The softmax is
    over the sampled neighbors, so its expectation depends on the fanout.

    Args:
        sizes: Types, widths and counts of the graph. `for_graph` derives them.
        hidden: Width of a layer's output, which the heads share (default 512).
        layers: Number of layers, which is the number of blocks of a batch (default 3).
        dropout: Dropout probability of hidden values in training (default 0.2).
        encoder: "linear" applies a linear layer per node type before the first layer (default "none"). Both
            ends of an edge must have equal widths.
        heads: Number of attention heads, a divisor of `hidden` (default 4).
    Raises:
        ValueError: `heads` does not divide `hidden`, a setting is out of range, a node type lacks the input
            column, or the ends of an edge have different widths.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> model = khop.models.RGAT.for_graph(graph, hidden=64, layers=2)
        >>> loader = khop.Loader(khop.NeighborSampler(graph, [5, 5]), graph.split("train"), 16, columns=["x"])
        >>> model(loader.batch(epoch=0, step=0)).shape
        torch.Size([16, 58])
    """

    Options = RgatOptions
    summary = "relational graph attention, as in MLPerf"
    attends = True  # weighs neighbors itself, under any rule

    def __init__(
        self,
        sizes: ModelSizes,
        hidden: int = 512,
        layers: int = 3,
        dropout: float = 0.2,
        encoder: Encoding = "none",
        heads: int = 4,
    ) -> None:
        if whole_number("heads", heads, 1, LARGEST_WIDTH) and hidden % heads:
            raise ValueError(f"heads {heads}: must divide hidden, {hidden}")
        reached: list[frozenset[NodeType]] = []  # by layer, the types with rows after it

        def make_layer(
            widths: Mapping[NodeType, int],
            destinations: tuple[NodeType, ...],
            edge_types: tuple[EdgeType, ...],
            options: LayerOptions,
        ) -> RgatLayer:
            # As in HeteroConv, a type without in-edges has no rows after a layer.
            there = reached[-1] if reached else frozenset(widths)
            followed = tuple(t for t in edge_types if t[0] in there and t[2] in there)
            reached.append(frozenset(t[2] for t in followed))
            return RgatLayer(widths, destinations, followed, options, heads, is_last=len(reached) == layers)

        super().__init__(sizes, encoder, layers, LayerOptions(hidden, dropout), make_layer)

    @classmethod
    def for_graph(
        cls,
        graph: HasTypes,
        hidden: int = 512,
        layers: int = 3,
        target: NodeType | Sequence[NodeType] | None = None,
        column: str = "x",
        dropout: float = 0.2,
        label: str | None = None,
        outputs: int | None = None,
        embedding: int | None = None,
        encoder: Encoding = "none",
        embedding_update: EmbeddingUpdate = "dense",
        heads: int = 4,
        embedded_types: EmbeddedTypes = "missing",
    ) -> RGAT:
        """Make a model with the types and widths of a graph.

        The arguments that are not listed are those of `SAGE.for_graph`.

        Args:
            heads: Number of attention heads, a divisor of `hidden` (default 4).
        Returns:
            The model, with new weights from torch's generator.
        """
        inputs = (column, label, outputs, embedding, embedding_update, embedded_types)
        return cls(ModelSizes.of(graph, target, *inputs), hidden, layers, dropout, encoder, heads)

    @classmethod
    def build(cls, options: RgatOptions, context: ModelInputs) -> RGAT:
        """Make the model of a run, with new weights from torch's generator."""
        shape = (context.sizes, context.hidden, context.layers, options.dropout)
        return cls(*shape, options.encoder, options.heads)


class RgatLayer(BlockLayer):
    """Sums over edge types of attention over the in-neighbors, then leaky ReLU and dropout."""

    activation: Activation = "none"  # leaky ReLU is not one of those that kernels fuse

    def __init__(
        self,
        widths: Mapping[NodeType, int],
        destinations: tuple[NodeType, ...],
        edge_types: tuple[EdgeType, ...],
        options: LayerOptions,
        heads: int,
        *,
        is_last: bool,
    ) -> None:
        super().__init__(destinations, LayerOptions(options.hidden) if is_last else options)
        self.is_last = is_last
        self.edge_types = edge_types
        self.norm = nn.ModuleDict()
        for edge_type in edge_types:
            source, destination = widths[edge_type[0]], widths[edge_type[2]]
            if source != destination:
                raise ValueError(
                    f"{edge_type}: the rows of its ends have {source} and {destination} columns, and rgat "
                    'multiplies both by one matrix; set encoder to "linear"'
                )
        self.attention = nn.ModuleDict(
            {parameter_name(*t): _Attention(widths[t[0]], options.hidden, heads) for t in edge_types}
        )

    def totals(self, h: Mapping[NodeType, Tensor], block: Block) -> Total:
        """Return a function that adds the attention of all edge types."""

        def total(node_type: NodeType, activation: Activation) -> Tensor:
            count = block.dst_counts[node_type]
            like = next(iter(h.values()))
            out = like.new_zeros(count, self.options.hidden)
            for edge_type in self.edge_types:
                if edge_type[2] == node_type:
                    attention = self.attention[parameter_name(*edge_type)]
                    own = h[node_type][:count]
                    out = out + attention(h[edge_type[0]], own, block.adjacencies.get(edge_type))
            return out if self.is_last else leaky_relu(out)

        return total


class _Attention(nn.Module):
    """torch_geometric's `GATConv(inputs, hidden // heads, heads, add_self_loops=False)`."""

    def __init__(self, inputs: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.values = linear_weight(hidden, inputs)
        self.source = nn.Parameter(torch.empty(heads, hidden // heads))
        self.destination = nn.Parameter(torch.empty(heads, hidden // heads))
        self.bias = nn.Parameter(torch.zeros(hidden))
        for score in (self.source, self.destination):
            nn.init.xavier_uniform_(score)

    def forward(self, h: Tensor, own: Tensor, adjacency: Adjacency | None) -> Tensor:
        """Return (destinations, hidden): sources' values weighted by attention, plus the bias."""
        # Every parameter takes part in every batch, and h, which others have computed.
        if adjacency is None or not adjacency.indices.numel():
            nothing = torch.cat([tensor.flatten()[:0] for tensor in (h, own, *self.parameters())])
            return self.bias.expand(own.shape[0], -1) + nothing.sum()
        # Scores are linear in the values, so they need no row of values: fold both weights into one.
        heads, width = self.source.shape
        by_head = self.values.view(heads, width, -1)
        of_sources, of_rows = (
            linear(rows, torch.einsum("hw,hwi->hi", score, by_head))
            for rows, score in ((h, self.source), (own, self.destination))
        )
        edges = (adjacency.indptr, adjacency.indices)
        return segment_attention(linear(h, self.values), of_sources, of_rows, *edges, SLOPE) + self.bias
