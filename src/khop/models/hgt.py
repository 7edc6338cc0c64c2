"""Heterogeneous graph transformer (Hu et al. 2020), over the blocks of any schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from khop.arguments import LARGEST_WIDTH, whole_number
from khop.batch import Adjacency, Block
from khop.components import Count
from khop.kernels.linear_blocks import Activation
from khop.kernels.segment import edge_rows
from khop.kernels.segment_attention import segment_dot, segment_softmax
from khop.kernels.segment_weighted import segment_weighted_sum
from khop.models.encoder import EmbeddedTypes, HasTypes, ModelInputs, ModelSizes
from khop.models.layer import BlockLayer, LayerOptions, Norm, NormOptions, Total, layer_norms, parameter_name
from khop.models.node_embedding import EmbeddingUpdate
from khop.models.stack import Stack
from khop.schema import EdgeType, NodeType


@dataclass(frozen=True)
class HgtOptions(NormOptions):
    """Options of an HGT, as set by a run."""

    heads: Count = 4
    """Number of attention heads. Each head has the width hidden / heads"""


class HGT(Stack):
    """Heterogeneous graph transformer, from "Heterogeneous Graph Transformer" (2020).

    A layer is HGTConv of torch_geometric, followed by norm and dropout: keys, queries and values by node
    type, matrices of scores and messages by edge type and head, one softmax over the drawn neighbors of all
    edge types, GELU, a linear layer by node type, and a learned skip connection. A linear layer per node type
    encodes the input. The softmax is over the sampled neighbors, so its expectation depends on the fanout,
    and `adjacency.weight` is not used.

    Args:
        sizes: Types, widths and counts of the graph. `for_graph` derives them.
        hidden: Width of a layer's output, which the heads share (default 256).
        layers: Number of layers, which is the number of blocks of a batch (default 2).
        dropout: Dropout probability of hidden values in training (default 0).
        norm: "layer" for layer normalization in each layer, "none" (default) for no normalization.
        heads: Number of attention heads, a divisor of `hidden` (default 4).
    Raises:
        ValueError: `heads` does not divide `hidden`, a setting is out of range, or a node type lacks the
            input column.
    Example:
        >>> graph = khop.open_graph("debian-typed")
        >>> model = khop.models.HGT.for_graph(graph, hidden=32, embedding=16)
        >>> loader = khop.Loader(khop.NeighborSampler(graph, [2, 2]), graph.split("train"), 16, columns=["x"])
        >>> model(loader.batch(epoch=0, step=0)).shape
        torch.Size([16, 58])
    """

    Options = HgtOptions
    summary = "heterogeneous graph transformer"
    attends = True  # has its own weights of neighbors, for any rule

    def __init__(
        self,
        sizes: ModelSizes,
        hidden: int = 256,
        layers: int = 2,
        dropout: float = 0.0,
        norm: Norm = "none",
        heads: int = 4,
    ) -> None:
        if whole_number("heads", heads, 1, LARGEST_WIDTH) and hidden % heads:
            raise ValueError(f"heads {heads}: must divide hidden, {hidden}")
        make_layer = partial(HgtLayer, heads=heads)
        super().__init__(sizes, "linear", layers, LayerOptions(hidden, dropout, norm), make_layer)

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
        label: str | None = None,
        outputs: int | None = None,
        embedding: int | None = None,
        heads: int = 4,
        embedding_update: EmbeddingUpdate = "dense",
        embedded_types: EmbeddedTypes = "missing",
    ) -> HGT:
        """Make a model with the types and widths of a graph.

        The other arguments are those of `SAGE.for_graph`.

        Args:
            heads: Number of attention heads, a divisor of `hidden` (default 4).
        Returns:
            The model, with new weights from torch's generator.
        """
        inputs = (column, label, outputs, embedding, embedding_update, embedded_types)
        return cls(ModelSizes.of(graph, target, *inputs), hidden, layers, dropout, norm, heads)

    @classmethod
    def build(cls, options: HgtOptions, context: ModelInputs) -> HGT:
        """Make the model of a run, with new weights from torch's generator."""
        shape = (context.hidden, context.layers, options.dropout, options.norm)
        return cls(context.sizes, *shape, options.heads)


class HgtLayer(BlockLayer):
    """Attention over the in-neighbors of all edge types, and a learned skip connection."""

    activation = "none"  # GELU is inside the sum

    def __init__(
        self,
        widths: Mapping[NodeType, int],
        destinations: tuple[NodeType, ...],
        edge_types: tuple[EdgeType, ...],
        options: LayerOptions,
        heads: int,
    ) -> None:
        super().__init__(destinations, options)
        self.edge_types = edge_types
        self.heads = heads
        hidden, width = options.hidden, options.hidden // heads
        sources = dict.fromkeys(t[0] for t in edge_types)
        asking = [t for t in dict.fromkeys(t[2] for t in edge_types) if t in widths]
        self.keys = nn.ModuleDict({parameter_name(t): nn.Linear(hidden, hidden) for t in sources})
        self.values = nn.ModuleDict({parameter_name(t): nn.Linear(hidden, hidden) for t in sources})
        self.queries = nn.ModuleDict({parameter_name(t): nn.Linear(hidden, hidden) for t in asking})
        # A destination without rows has no query: neighbors have equal weights, and scores no parameters.
        scored = [parameter_name(*t) for t in edge_types if t[2] in asking]
        self.score = nn.ParameterDict({name: _by_head(heads, width) for name in scored})
        self.prior = nn.ParameterDict({name: nn.Parameter(torch.ones(heads)) for name in scored})
        self.message = nn.ParameterDict({parameter_name(*t): _by_head(heads, width) for t in edge_types})
        self.out = nn.ModuleDict({parameter_name(t): nn.Linear(hidden, hidden) for t in destinations})
        owners = [parameter_name(t) for t in destinations if t in widths]
        self.skip = nn.ParameterDict({name: nn.Parameter(torch.ones(())) for name in owners})
        self.norm = layer_norms(destinations, options)

    def totals(self, h: Mapping[NodeType, Tensor], block: Block) -> Total:
        """Return a function that mixes destination rows and attention over all neighbors."""

        def total(node_type: NodeType, activation: Activation) -> Tensor:
            name, count = parameter_name(node_type), block.dst_counts[node_type]
            own = h[node_type][:count] if name in self.skip else None
            out: Tensor = self.out[name](gelu(self._attended(node_type, h, block)))
            if own is None:
                return out
            share: Tensor = self.skip[name].sigmoid()
            return share * out + (1 - share) * own

        return total

    def _attended(self, node_type: NodeType, h: Mapping[NodeType, Tensor], block: Block) -> Tensor:
        """Return (destinations, hidden): the values of all neighbors, weighted by one softmax."""
        name, count = parameter_name(node_type), block.dst_counts[node_type]
        query = self.queries[name](h[node_type][:count]) if name in self.queries else None
        found = []
        total = next(self.out[name].parameters()).new_zeros(count, self.options.hidden)
        for edge_type in self.edge_types:
            if edge_type[2] != node_type:
                continue
            adjacency, rows = block.adjacencies.get(edge_type), h[edge_type[0]]
            if adjacency is None or not adjacency.indices.numel():
                adjacency, rows = None, rows[:0]
            edges = self._edges(edge_type, rows, query, adjacency)
            total = total + edges.nothing()  # every parameter takes part in every batch
            found += [edges] if adjacency is not None else []
        for edges, weights in zip(found, _joint_softmax(found), strict=True):
            given = edges.adjacency
            assert given is not None
            total = total + segment_weighted_sum(edges.values, weights, given.indptr, given.indices)
        return total

    def _edges(
        self, edge_type: EdgeType, rows: Tensor, query: Tensor | None, adjacency: Adjacency | None
    ) -> _Edges:
        source, name = parameter_name(edge_type[0]), parameter_name(*edge_type)
        values = _per_head(self.values[source], self.message[name], rows)
        if query is None:
            scores = values.new_zeros(0 if adjacency is None else adjacency.indices.numel(), self.heads)
            return _Edges(adjacency, values, scores, self.keys[source](rows[:0]))
        scale = (self.prior[name] * (self.heads / self.options.hidden) ** 0.5).view(-1, 1, 1)
        keys = _per_head(self.keys[source], self.score[name] * scale, rows)
        if adjacency is None:
            return _Edges(None, values, query[:0, : self.heads], keys)
        scores = segment_dot(keys, query, self.heads, adjacency.indptr, adjacency.indices)
        return _Edges(adjacency, values, scores.to(values.dtype), keys)


@dataclass(frozen=True)
class _Edges:
    """The edges of one type into the destinations."""

    adjacency: Adjacency | None  # None: there are no edges
    values: Tensor  # (sources, hidden)
    scores: Tensor  # (edges, heads)
    keys: Tensor  # (sources, hidden)

    def nothing(self) -> Tensor:
        """Return 0, with a gradient of zeros for every operand."""
        return self.values[:0].sum() + self.scores[:0].sum() + self.keys[:0].sum()


def _joint_softmax(found: Sequence[_Edges]) -> Sequence[Tensor]:
    """Normalize the scores of each destination over its edges of all types; return them by type."""
    adjacencies = [edges.adjacency for edges in found if edges.adjacency is not None]
    if len(adjacencies) == 1:
        return [segment_softmax(found[0].scores, adjacencies[0].indptr)]
    if not adjacencies:
        return []
    # Each row of the joint edges has the row's edges of the first type, then those of the second, and so on.
    # The last row has the unused entries after the last edge, in batches of static shape.
    ends = [_with_unused(adjacency) for adjacency in adjacencies]
    indptr = torch.stack(ends).sum(0)
    starts, places = indptr[:-1], []
    for adjacency, end in zip(adjacencies, ends, strict=True):
        edges = adjacency.indices.numel()
        shift = (starts - end[:-1]).index_select(0, edge_rows(adjacency.indptr, edges))
        places.append(shift + torch.arange(edges, device=shift.device))
        starts = starts + end.diff()
    place = torch.cat(places)
    order = torch.empty_like(place).index_copy_(0, place, torch.arange(place.numel(), device=place.device))
    scores = torch.cat([edges.scores for edges in found])
    weights = segment_softmax(scores.index_select(0, order), indptr[:-1]).index_select(0, place)
    return torch.split(weights, [adjacency.indices.numel() for adjacency in adjacencies])


def _with_unused(adjacency: Adjacency) -> Tensor:
    """Return the row pointers with an additional row for the unused entries after the last edge."""
    return torch.cat([adjacency.indptr, adjacency.indptr.new_full((1,), adjacency.indices.numel())])


def _per_head(rows_of: nn.Module, by_head: Tensor, x: Tensor) -> Tensor:
    """Multiply the rows of a linear layer by a matrix (in, out) per head: (rows, hidden)."""
    heads, width, _ = by_head.shape
    weight, bias = rows_of.weight, rows_of.bias
    assert isinstance(weight, Tensor)
    assert isinstance(bias, Tensor)
    # Multiplying both matrices first costs less than another product with all rows.
    folded = torch.einsum("hde,hdi->hei", by_head, weight.view(heads, width, -1))
    of_bias = torch.einsum("hde,hd->he", by_head, bias.view(heads, width))
    return linear(x, folded.reshape(weight.shape), of_bias.reshape(-1))


def _by_head(heads: int, width: int) -> nn.Parameter:
    rows = torch.empty(heads, width, width)
    for matrix in rows:
        nn.init.xavier_uniform_(matrix)
    return nn.Parameter(rows)
