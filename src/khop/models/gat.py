"""Graph attention networks: GAT (Velickovic et al. 2018) and GATv2 (Brody et al. 2022), for any schema."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, linear

from khop.arguments import LARGEST_WIDTH, check_word, whole_number
from khop.batch import Adjacency, Block
from khop.components import Count, Default, Text
from khop.kernels.linear_blocks import Activation
from khop.kernels.segment import rows_of_destinations, rows_of_sources
from khop.kernels.segment_attention import segment_attention, segment_softmax
from khop.kernels.segment_weighted import segment_weighted_sum
from khop.models.encoder import EmbeddedTypes, Encoding, HasTypes, ModelInputs, ModelSizes
from khop.models.layer import (
    BlockLayer,
    LayerOptions,
    Norm,
    Residual,
    StackOptions,
    Total,
    layer_norms,
    linear_weight,
    parameter_name,
)
from khop.models.node_embedding import EmbeddingUpdate
from khop.models.stack import Stack
from khop.models.time2vec import Time2Vec
from khop.schema import EdgeType, NodeType, Schema, Type

Attention = Literal["gat", "gatv2"]
SLOPE = 0.2  # negative slope of the leaky ReLU of scores, as in both papers


@dataclass(frozen=True)
class GatOptions(StackOptions):
    """Options of a GAT, as set by a run."""

    heads: Count = 4
    """Number of attention heads. Each head has the width hidden / heads"""
    attention: Attention = "gat"
    """Attention scores: static (gat) or dynamic (gatv2). With dynamic scores, two nodes can rank the same
    neighbors differently"""
    edge_column: Annotated[Text | None, Default("none")] = None
    """Edge column with features for the attention scores. It applies to all edge types that have it"""
    edge_times: Annotated[Count | None, Default("none")] = None
    """Width of Time2Vec features of times in the attention scores. They depend on the time limit of the edge
    minus the time of the edge"""


class GAT(Stack):
    """Graph attention network, from "Graph Attention Networks" (2018); GATv2 with `attention="gatv2"`.

    A layer computes `norm(W h + b + sum over edge types of attention over the in-neighbors)` for each
    destination, then ReLU and dropout. Attention is that of GATConv or GATv2Conv ("How Attentive are Graph
    Attention Networks?", 2022) in torch_geometric, with W instead of self loops. The softmax is over the
    sampled neighbors, so its expectation depends on the fanout, and `adjacency.weight` is not used.

    Args:
        sizes: Types, widths and counts of the graph. `for_graph` derives them.
        hidden: Width of a layer's output, which the heads share (default 256).
        layers: Number of layers, which is the number of blocks of a batch (default 2).
        dropout: Dropout probability of hidden values in training (default 0).
        norm: "layer" for layer normalization in each layer, "none" (default) for no normalization.
        residual: "add" adds the input of a layer to its output if the widths are equal (default "none").
        encoder: "linear" applies a linear layer per node type before the first layer (default "none").
        heads: Number of attention heads, a divisor of `hidden` (default 4).
        attention: Scores of edges: "gat" (default) or "gatv2".
        edges: Edge column and times that the scores also depend on, as `edge_dim` in torch_geometric;
            default None.
    Raises:
        ValueError: `heads` does not divide `hidden`, a setting is out of range, or a node type lacks the
            input column.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> model = khop.models.GAT.for_graph(graph, hidden=64, heads=4, attention="gatv2")
        >>> loader = khop.Loader(khop.NeighborSampler(graph, [5, 5]), graph.split("train"), 16, columns=["x"])
        >>> model(loader.batch(epoch=0, step=0)).shape
        torch.Size([16, 58])
    """

    Options = GatOptions
    summary = "graph attention"
    attends = True  # has its own weights of neighbors, for any rule
    other_kinds: ClassVar[Mapping[str, Mapping[str, str]]] = {"gatv2": {"attention": "gatv2"}}

    def __init__(
        self,
        sizes: ModelSizes,
        hidden: int = 256,
        layers: int = 2,
        dropout: float = 0.0,
        norm: Norm = "none",
        residual: Residual = "none",
        encoder: Encoding = "none",
        heads: int = 4,
        attention: Attention = "gat",
        edges: EdgeInputs | None = None,
    ) -> None:
        if whole_number("heads", heads, 1, LARGEST_WIDTH) and hidden % heads:
            raise ValueError(f"heads {heads}: must divide hidden, {hidden}")
        check_word("attention", attention, Attention)
        self._edges = edges
        make_layer = partial(AttentionLayer, heads=heads, attention=attention, edges=edges)
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
        heads: int = 4,
        attention: Attention = "gat",
        embedded_types: EmbeddedTypes = "missing",
        edge_column: str | None = None,
        edge_times: int | None = None,
    ) -> GAT:
        """Make a model with the types and widths of a graph.

        The other arguments are those of `SAGE.for_graph`.

        Args:
            heads: Number of attention heads, a divisor of `hidden` (default 4).
            attention: Scores of edges: "gat" (default) or "gatv2".
            edge_column: Edge column that the scores also depend on, of all edge types that have it. The
                loader must gather it.
            edge_times: Width of the `Time2Vec` features of `Adjacency.elapsed`, on which the scores also
                depend; the rule must be `khop.Temporal(..., elapsed=True)` or have `limit="edge"`. Default
                None.
        Returns:
            The model, with new weights from torch's generator.
        """
        inputs = (column, label, outputs, embedding, embedding_update, embedded_types)
        sizes = ModelSizes.of(graph, target, *inputs)
        edges = EdgeInputs.of(graph.schema, edge_column, sizes.edge_types, edge_times)
        return cls(sizes, hidden, layers, dropout, norm, residual, encoder, heads, attention, edges)

    @classmethod
    def build(cls, options: GatOptions, context: ModelInputs) -> GAT:
        """Make the model of a run, with new weights from torch's generator."""
        shape = (context.hidden, context.layers, options.dropout, options.norm, options.added)
        of_edges = options.edge_column, context.sizes.edge_types, options.edge_times
        edges = EdgeInputs.of(context.graph.schema, *of_edges)
        return cls(context.sizes, *shape, options.encoder, options.heads, options.attention, edges)

    @property
    def input_columns(self) -> Mapping[Type, tuple[str, ...]]:
        """Input column of node types, and the column of edge types."""
        columns: dict[Type, tuple[str, ...]] = dict(super().input_columns)
        if self._edges is not None and self._edges.column is not None:
            columns |= {t: (self._edges.column,) for t in self._edges.widths}
        return columns


@dataclass(frozen=True)
class EdgeInputs:
    """A column of numbers of edges, its width by edge type, and the width of features of times."""

    column: str | None
    widths: Mapping[EdgeType, int]
    times: int = 0  # features of elapsed times, of all edge types

    @classmethod
    def of(
        cls, schema: Schema, column: str | None, edge_types: Sequence[EdgeType], times: int | None = None
    ) -> EdgeInputs | None:
        """Return the widths in a graph, None without any; ValueError if no edge type has the column."""
        if times is not None:
            whole_number("edge_times", times, 1, LARGEST_WIDTH)
        if column is None:
            return None if times is None else cls(None, {}, times)
        specs = {t: schema.columns.get(t, {}) for t in edge_types}
        widths = {t: math.prod(of_type[column].shape) for t, of_type in specs.items() if column in of_type}
        if not widths:
            there = {" ".join(t): sorted(of_type) for t, of_type in specs.items()}
            raise ValueError(f"edge column {column!r}: no edge type has it; there are {there}")
        return cls(column, widths, times or 0)

    def width(self, edge_type: EdgeType) -> int | None:
        """Return the number of inputs of an edge; None without any."""
        return self.widths.get(edge_type, 0) + self.times or None

    def rows(self, edge_type: EdgeType, adjacency: Adjacency, dtype: torch.dtype) -> Tensor:
        """Return (edges, width): the numbers of the edges of a batch."""
        assert self.column is not None
        if self.column not in adjacency.columns:
            raise ValueError(
                f"column {self.column!r} of {edge_type}: the model reads it, but the batch does not have it; "
                f"give the loader columns={{{edge_type!r}: [{self.column!r}], ...}}"
            )
        return adjacency.columns[self.column].reshape(-1, self.widths[edge_type]).to(dtype)


class AttentionLayer(BlockLayer):
    """The destination's row times a weight, plus attention over the in-neighbors of each edge type."""

    def __init__(
        self,
        widths: Mapping[NodeType, int],
        destinations: tuple[NodeType, ...],
        edge_types: tuple[EdgeType, ...],
        options: LayerOptions,
        heads: int,
        attention: Attention,
        edges: EdgeInputs | None = None,
    ) -> None:
        super().__init__(destinations, options)
        self.edges = edges
        hidden = options.hidden
        own = {parameter_name(t): linear_weight(hidden, widths[t]) for t in destinations if t in widths}
        self.own = nn.ParameterDict(own)
        names = [parameter_name(t) for t in destinations]
        self.bias = nn.ParameterDict({name: nn.Parameter(torch.zeros(hidden)) for name in names})
        self.norm = layer_norms(destinations, options)
        self.times = Time2Vec(edges.times) if edges is not None and edges.times else None
        # A destination without rows, as in the first layer of types without a column, has no say in scores.
        self.edge_types = edge_types
        self.attention = nn.ModuleDict(
            {
                parameter_name(*t): _EdgeAttention(
                    (widths[t[0]], widths.get(t[2]), None if edges is None else edges.width(t)),
                    hidden,
                    heads,
                    attention,
                )
                for t in edge_types
            }
        )

    def totals(self, h: Mapping[NodeType, Tensor], block: Block) -> Total:
        """Return a function that adds the attention of all edge types to destination rows times a weight."""

        def total(node_type: NodeType, activation: Activation) -> Tensor:
            name, count = parameter_name(node_type), block.dst_counts[node_type]
            out: Tensor = self.bias[name].expand(count, -1)
            own = h[node_type][:count] if name in self.own else None
            if own is not None:
                out = linear(own, self.own[name], self.bias[name])
            for edge_type in self.edge_types:
                if edge_type[2] == node_type:
                    attention = self.attention[parameter_name(*edge_type)]
                    adjacency = block.adjacencies.get(edge_type)
                    numbers = self._numbers(edge_type, adjacency, h[edge_type[0]].dtype)
                    out = out + attention(h[edge_type[0]], own, adjacency, count, numbers)
            return out.relu() if activation == "relu" else out

        return total

    def _numbers(self, edge_type: EdgeType, adjacency: Adjacency | None, dtype: torch.dtype) -> Tensor | None:
        given = self.edges
        if given is None or adjacency is None:
            return None
        inputs = [given.rows(edge_type, adjacency, dtype)] if edge_type in given.widths else []
        if self.times is not None:
            if adjacency.elapsed is None:
                raise ValueError(
                    f"elapsed times of {edge_type}: the model reads them, the batch does not have them; give "
                    "the sampler rule=khop.Temporal(column, elapsed=True)"
                )
            inputs.append(self.times(adjacency.elapsed).to(dtype))
        return torch.cat(inputs, dim=1) if inputs else None


class _EdgeAttention(nn.Module):
    """Attention over the in-neighbors along one edge type."""

    def __init__(
        self, widths: tuple[int, int | None, int | None], hidden: int, heads: int, attention: Attention
    ) -> None:
        super().__init__()
        source, destination, edge = widths
        self.is_v2 = attention == "gatv2"
        self.values = linear_weight(hidden, source)
        self.score = nn.Parameter(torch.empty(heads, hidden // heads))
        nn.init.xavier_uniform_(self.score)
        rows = hidden if self.is_v2 else heads
        self.destination = None if destination is None else linear_weight(rows, destination)
        self.edge = None if edge is None else linear_weight(rows, edge)

    def forward(
        self,
        h: Tensor,
        own: Tensor | None,
        adjacency: Adjacency | None,
        count: int,
        numbers: Tensor | None = None,
    ) -> Tensor:
        """Return (destinations, hidden): sums of the sources' values, weighted by attention.

        `numbers` are the edge features, (edges, width), if the edge type has them.
        """
        # Every parameter takes part in every batch, and so does h, which others have computed.
        if adjacency is None or not adjacency.indices.numel():
            nothing = torch.cat([tensor.flatten()[:0] for tensor in (h, *self.parameters())])
            return self.values.new_zeros(count, self.values.shape[0]) + nothing.sum()
        values, edges = linear(h, self.values), (adjacency.indptr, adjacency.indices)
        of_edges = None if numbers is None or self.edge is None else linear(numbers, self.edge)
        if self.is_v2:
            scores = self._scores_v2(values, own, adjacency, of_edges)
        else:
            of_sources, of_rows = self._scores(h, own)
            if of_edges is None:
                return segment_attention(values, of_sources, of_rows, *edges, SLOPE)
            scores = of_edges + rows_of_sources(of_sources, *edges)
            scores = leaky_relu(scores if of_rows is None else scores + _by_edge(of_rows, adjacency), SLOPE)
        return segment_weighted_sum(values, segment_softmax(scores, adjacency.indptr), *edges)

    def _scores(self, h: Tensor, own: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return terms (sources, heads) and (destinations, heads), whose sum is the score of an edge."""
        heads, width = self.score.shape
        # The score is linear in the values, so both weights can be folded into one.
        folded = torch.einsum("hw,hwi->hi", self.score, self.values.view(heads, width, -1))
        of_rows = None if own is None or self.destination is None else linear(own, self.destination)
        return linear(h, folded), of_rows

    def _scores_v2(
        self, values: Tensor, own: Tensor | None, adjacency: Adjacency, of_edges: Tensor | None
    ) -> Tensor:
        """Return (edges, heads): the dot product with the activated sum of an edge's two rows."""
        both = rows_of_sources(values, adjacency.indptr, adjacency.indices)
        if own is not None and self.destination is not None:
            both = both + _by_edge(linear(own, self.destination), adjacency)
        if of_edges is not None:
            both = both + of_edges
        return (leaky_relu(both, SLOPE).view(-1, *self.score.shape) * self.score).sum(-1)


def _by_edge(rows: Tensor, adjacency: Adjacency) -> Tensor:
    """Repeat each destination's row for its edges."""
    return rows_of_destinations(rows, adjacency.indptr, adjacency.indices.numel())
