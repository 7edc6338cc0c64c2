"""GraphSAGE with the mean of neighbours (Hamilton, Ying, Leskovec 2017), over the blocks of any schema."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from khop.batch import Adjacency, Batch, Block, Columns
from khop.kernels.dropout import dropout
from khop.kernels.segment import segment_mean
from khop.models.layered import destination_types
from khop.schema import EdgeType, NodeType, Schema

Norm = Literal["none", "layer"]

# What aggregating one number of one edge costs, in multiply-adds of a matrix product (measured: 3 to 10).
AGGREGATION_COST = 6


class HasSchema(Protocol):
    """Anything whose types and columns are known: a graph, a graph store, a folder."""

    @property
    def schema(self) -> Schema:
        """The types of the graph."""
        ...


@dataclass(frozen=True)
class SageSizes:
    """What a SAGE has to know of its graph."""

    inputs: Mapping[NodeType, int]  # width of the input column; types without it are left out
    edge_types: tuple[EdgeType, ...]
    target: NodeType
    outputs: int  # classes
    column: str = "x"

    @classmethod
    def of(
        cls, schema: Schema, target: NodeType | None = None, column: str = "x", label: str | None = None
    ) -> SageSizes:
        """Sizes from the schema; target and label are the one node type and its one column with classes
        unless they are named.
        """
        target, label = schema.label_column(target, label)
        classes = schema.column(target, label).num_classes
        assert classes is not None
        columns = {t: schema.columns.get(t, {}) for t in schema.node_types}
        inputs = {t: math.prod(specs[column].shape) for t, specs in columns.items() if column in specs}
        if not inputs:
            there = {t: sorted(specs) for t, specs in columns.items()}
            raise ValueError(f"column {column!r}: no node type has it; there are {there}")
        return cls(inputs, schema.edge_types, target, classes, column)


@dataclass(frozen=True)
class LayerOptions:
    """What all layers of a SAGE have in common; checked when made."""

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


class SAGE(nn.Module):
    """GraphSAGE with a linear classifier on top.

    A layer gives each destination norm(W h + b + sum over edge types of W_e mean(h of its in-neighbours)),
    then relu and dropout, plus h itself where `residual` and the widths agree. Every node type has its own W,
    b and norm, every edge type its own W_e; only those that can reach the target exist. A type without the
    input column counts as zeros. Integer and half-precision columns are cast to the parameters' dtype.
    """

    def __init__(
        self,
        sizes: SageSizes,
        hidden: int = 256,
        layers: int = 2,
        dropout: float = 0.0,
        norm: Norm = "none",
        residual: bool = False,
    ) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"layers {layers}: must be at least 1")
        options = LayerOptions(hidden, dropout, norm, residual)
        self.sizes = sizes
        self.layers = nn.ModuleList()
        widths = dict(sizes.inputs)
        for destinations in destination_types(sizes.edge_types, sizes.target, layers):
            self.layers.append(SageLayer(widths, destinations, sizes.edge_types, options))
            widths = dict.fromkeys(destinations, hidden)
        self.classifier = nn.Linear(hidden, sizes.outputs)

    @classmethod
    def for_graph(
        cls,
        graph: HasSchema,
        hidden: int = 256,
        layers: int = 2,
        target: NodeType | None = None,
        column: str = "x",
        dropout: float = 0.0,
        norm: Norm = "none",
        residual: bool = False,
        label: str | None = None,
    ) -> SAGE:
        """A SAGE that fits the graph and classifies `target` by `label`, by default the only ones."""
        sizes = SageSizes.of(graph.schema, target, column, label)
        return cls(sizes, hidden, layers, dropout, norm, residual)

    @property
    def num_layers(self) -> int:
        """How many blocks a batch needs."""
        return len(self.layers)

    @property
    def input_columns(self) -> Mapping[NodeType, tuple[str, ...]]:
        """The input column, of each node type that has it."""
        return dict.fromkeys(self.sizes.inputs, (self.sizes.column,))

    def encode(self, columns: Columns) -> dict[NodeType, Tensor]:
        """(rows, width) in the parameters' dtype, of each node type that has the input column."""
        dtype = self.classifier.weight.dtype
        return {
            node_type: columns[node_type][self.sizes.column].reshape(-1, width).to(dtype)
            for node_type, width in self.sizes.inputs.items()
            if node_type in columns
        }

    def layer(self, index: int, h: Mapping[NodeType, Tensor], block: Block) -> dict[NodeType, Tensor]:
        """(destinations, hidden) of each destination type that this layer has."""
        out: dict[NodeType, Tensor] = self.layers[index](h, block)
        return out

    def head(self, h: Mapping[NodeType, Tensor]) -> Tensor:
        """(rows, classes): the logits of the target type's rows."""
        logits: Tensor = self.classifier(h[self.sizes.target])
        return logits

    def forward(self, batch: Batch) -> Tensor:
        """(seeds, classes): logits, one row per seed, duplicates included."""
        if len(batch.blocks) != self.num_layers:
            raise ValueError(
                f"the batch has {len(batch.blocks)} blocks, the model {self.num_layers} layers: "
                "give the sampler one fanout per layer"
            )
        h = self.encode(batch.columns)
        for index, block in enumerate(batch.blocks):
            h = self.layer(index, h, block)
        target = self.sizes.target
        # index_select, not h[...]: its backward adds in a fixed order where a seed stands twice.
        return self.head({target: h[target].index_select(0, batch.sample.seed_index[target])})


class SageLayer(nn.Module):
    """One layer: weights, biases and norms of the destination types, and a weight per edge type into them."""

    def __init__(
        self,
        widths: Mapping[NodeType, int],
        destinations: tuple[NodeType, ...],
        edge_types: tuple[EdgeType, ...],
        options: LayerOptions,
    ) -> None:
        super().__init__()
        self.options = options
        self.destinations = destinations
        self.edge_types = tuple(t for t in edge_types if t[2] in destinations and t[0] in widths)
        hidden = options.hidden
        with_input = [t for t in destinations if t in widths]
        self.own = nn.ParameterDict({_key(t): _weight(hidden, widths[t]) for t in with_input})
        self.neighbors = nn.ParameterDict({_key(*t): _weight(hidden, widths[t[0]]) for t in self.edge_types})
        self.bias = nn.ParameterDict({_key(t): nn.Parameter(torch.zeros(hidden)) for t in destinations})
        normed = destinations if options.norm == "layer" else ()
        self.norm = nn.ModuleDict({_key(t): nn.LayerNorm(hidden) for t in normed})

    def forward(self, h: Mapping[NodeType, Tensor], block: Block) -> dict[NodeType, Tensor]:
        """(destinations, hidden) per destination type; nothing else is computed."""
        return {t: self._rows(t, h, block) for t in self.destinations if t in block.dst_counts}

    def _rows(self, node_type: NodeType, h: Mapping[NodeType, Tensor], block: Block) -> Tensor:
        key, count = _key(node_type), block.dst_counts[node_type]
        before = h[node_type][:count] if key in self.own else None
        bias: Tensor = self.bias[key]
        # In place where nothing before keeps the value for its gradient: new memory costs more than the sum.
        out = bias.repeat(count, 1) if before is None else F.linear(before, self.own[key], bias)
        for edge_type in self.edge_types:
            if edge_type[2] == node_type and edge_type in block.adjacencies:
                weight = self.neighbors[_key(*edge_type)]
                out += mean_of_neighbors(h[edge_type[0]], block.adjacencies[edge_type], weight)
        if key in self.norm:
            out = self.norm[key](out)
        out = out.relu_()
        if self.training:
            out = dropout(out, self.options.dropout)
        if self.options.residual and before is not None and before.shape == out.shape:
            return out + before
        return out


def mean_of_neighbors(h: Tensor, adjacency: Adjacency, weight: Tensor) -> Tensor:
    """(destinations, out): the weight times the mean of the in-neighbours' rows of h; 0 where there are none.

    The mean is linear, so the weight may come before or after it: the shapes alone decide which costs less.
    """
    outputs, inputs = weight.shape
    edges = adjacency.indices.numel() * AGGREGATION_COST
    cost_before = adjacency.num_src * inputs * outputs + edges * outputs
    cost_after = adjacency.num_dst * inputs * outputs + edges * inputs
    if cost_before < cost_after:
        return segment_mean(F.linear(h, weight), adjacency.indptr, adjacency.indices)
    return F.linear(segment_mean(h, adjacency.indptr, adjacency.indices), weight)


def _weight(outputs: int, inputs: int) -> nn.Parameter:
    return nn.Parameter(nn.Linear(inputs, outputs, bias=False).weight)


def _key(*names: str) -> str:
    """A name that torch's containers take: without dots, and never one of their attributes ("items")."""
    for character in "%.:":
        names = tuple(name.replace(character, f"%{ord(character):02X}") for name in names)
    return ":".join(names if len(names) > 1 else ("node", *names))
