"""Relational graph convolutions (Schlichtkrull et al. 2018), over the blocks of any schema.

The relation of an edge is its edge type, or the value of an edge column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from khop.batch import Adjacency, Block
from khop.components import Default, Text
from khop.kernels.choice import Engine, engine
from khop.kernels.csc import Csc
from khop.kernels.linear import grouped_linear
from khop.kernels.linear_blocks import Activation
from khop.kernels.segment import accumulator, segment_sum
from khop.kernels.segment_weighted import merge_edges, segment_mixture, segment_weighted_sum
from khop.models.encoder import EmbeddedTypes, Encoding, HasTypes, ModelInputs, ModelSizes
from khop.models.layer import (
    Layer,
    LayerOptions,
    LayerSum,
    Norm,
    Residual,
    RowNames,
    StackOptions,
    Total,
    linear_weight,
    parameter_name,
)
from khop.models.node_embedding import EmbeddingUpdate
from khop.models.stack import Stack
from khop.schema import EdgeType, NodeType, Type


@dataclass(frozen=True)
class RelationColumn:
    """Edge column of relations, and the number of relations of each edge type that has it.

    Args:
        column: Name of an integer edge column. Its values are relations, from 0.
        counts: Number of relations by edge type. Edge types that are left out are one relation each.
    Raises:
        ValueError: A count is below 1.
    Example:
        >>> relations = khop.models.RelationColumn("stars", {("user", "rates", "item"): 5})
        >>> relations.counts["user", "rates", "item"]
        5
    """

    column: str
    counts: Mapping[EdgeType, int]

    def __post_init__(self) -> None:
        for edge_type, count in self.counts.items():
            if count < 1:
                raise ValueError(f"relations of {edge_type}: {count}, must be at least 1")


@dataclass(frozen=True)
class RelatedEdges:
    """Edges sorted by destination, then by relation.

    `scales` are the coefficients of a sum: 1 over the number of edges with the same row and relation, or the
    weights of the sampler's rule.
    """

    indptr: Tensor  # int64 (rows + 1)
    indices: Tensor  # int32 (edges), rows of the joined sources
    relations: Tensor  # int64 (edges), row of the layer's table
    scales: Tensor  # float64, or float32 by a rule (edges)

    @classmethod
    def of_column(
        cls, edge_type: EdgeType, adjacency: Adjacency, given: RelationColumn, first: int
    ) -> RelatedEdges:
        """Return the edges of one type by their column; relation 0 has row `first` of the table."""
        if given.column not in adjacency.columns:
            raise ValueError(
                f"column {given.column!r} of {edge_type}: the model reads it, but the batch does not have "
                f"it; give the loader columns={{{edge_type!r}: [{given.column!r}], ...}}"
            )
        relations = adjacency.columns[given.column].long()
        count = given.counts[edge_type]
        if relations.device.type == "cpu" and relations.numel():
            low, high = (int(end) for end in relations.aminmax())
            if low < 0 or high >= count:
                raise ValueError(
                    f"column {given.column!r} of {edge_type}: relations from {low} to {high}, but the model "
                    f"has {count}; make it with more relations"
                )
        rows = _rows(adjacency.indptr, adjacency.indices.numel())
        keys, order = (rows * count + relations).sort(stable=True)
        weights = None if adjacency.weight is None else adjacency.weight[order]
        return cls._scaled(
            adjacency.indptr, adjacency.indices[order], relations[order] + first, keys, weights
        )

    @classmethod
    def of_types(
        cls,
        adjacencies: Sequence[Adjacency],
        tables: Sequence[int],
        firsts: Sequence[int],
        shape: tuple[int, int],
    ) -> RelatedEdges:
        """Return the edges of several types, which all have weights or all have none.

        Type i has row `tables[i]` of the table, and `firsts[i]` is the first row of its sources. `shape` are
        the numbers of rows and of joined sources.
        """
        edges = [Csc(each.indptr, each.indices) for each in adjacencies]
        joined, numbers = merge_edges(edges, firsts, *shape)
        relations = torch.tensor(tables, dtype=torch.int64)[numbers.long()]
        keys = _rows(joined.indptr, joined.num_edges) * len(tables) + numbers
        weights = _joined_weights(adjacencies, shape[0])
        return cls._scaled(joined.indptr, joined.indices, relations, keys, weights)

    @classmethod
    def _scaled(
        cls, indptr: Tensor, indices: Tensor, relations: Tensor, keys: Tensor, weights: Tensor | None
    ) -> RelatedEdges:
        """Return the edges with their scales; equal `keys` are adjacent."""
        if weights is None:
            numbers = _first_of_runs(keys).cumsum(0) - 1
            counts = torch.zeros_like(keys).scatter_add_(0, numbers, torch.ones_like(keys))
            weights = (1 / counts.double())[numbers]
        return cls(indptr, indices, relations, weights)

    def pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Group edges by row and relation: return pairs by row, edges by pair, and each pair's relation.

        Synchronizes with a device once, for the number of pairs.
        """
        count = self.indices.numel()
        changes = _first_of_runs(self.relations) | _first_of_runs(_rows(self.indptr, count))
        before = F.pad(changes.cumsum(0), (1, 0))
        firsts = changes.nonzero().squeeze(1)
        return before[self.indptr], F.pad(firsts, (0, 1), value=count), self.relations[firsts]


@dataclass(frozen=True)
class RelationSlots:
    """Rows of a layer's table of relations: one per edge type, or one per value of the relation column."""

    first: Mapping[EdgeType, int]
    given: RelationColumn | None
    counts: Mapping[EdgeType, int]

    @classmethod
    def of(cls, edge_types: Sequence[EdgeType], given: RelationColumn | None) -> RelationSlots:
        """Return the rows in the order of the edge types."""
        counts = {t: 1 if given is None else given.counts.get(t, 1) for t in edge_types}
        firsts = accumulate(counts.values(), initial=0)
        return cls(dict(zip(counts, firsts, strict=False)), given, counts)

    @property
    def count(self) -> int:
        """Number of rows of the table."""
        return sum(self.counts.values())

    def has_column(self, edge_type: EdgeType) -> bool:
        """Return True if the relations of an edge type are in its column."""
        return self.given is not None and edge_type in self.given.counts

    def groups(
        self, node_type: NodeType, h: Mapping[NodeType, Tensor], block: Block
    ) -> list[tuple[Tensor, RelatedEdges]]:
        """Return the edges into a node type with the rows of their sources, in a few groups.

        On the CPU, edge types without a column are one group, or two if some of them have weights.
        """
        there = {t: block.adjacencies[t] for t in self.first if t[2] == node_type and t in block.adjacencies}
        alone = {t: a for t, a in there.items() if self.has_column(t)}
        others = {t: a for t, a in there.items() if t not in alone and a.indices.numel()}
        is_native = all(engine(a.indptr.device) is Engine.NATIVE for a in others.values())
        found = []
        for edge_type, adjacency in alone.items():
            assert self.given is not None
            edges = RelatedEdges.of_column(edge_type, adjacency, self.given, self.first[edge_type])
            found.append((h[edge_type[0]], edges))
        if is_native:
            weighed = {t: a for t, a in others.items() if a.weight is not None}
            averaged = {t: a for t, a in others.items() if a.weight is None}
            count, others = block.dst_counts[node_type], {}
            found += [self._merged(each, h, count) for each in (weighed, averaged) if each]
        for edge_type, adjacency in others.items():
            relations = torch.full_like(adjacency.indices, self.first[edge_type], dtype=torch.int64)
            keys = _rows(adjacency.indptr, adjacency.indices.numel())
            edges = RelatedEdges._scaled(
                adjacency.indptr, adjacency.indices, relations, keys, adjacency.weight
            )
            found.append((h[edge_type[0]], edges))
        return found

    def _merged(
        self, adjacencies: Mapping[EdgeType, Adjacency], h: Mapping[NodeType, Tensor], count: int
    ) -> tuple[Tensor, RelatedEdges]:
        sources = list(dict.fromkeys(t[0] for t in adjacencies))
        firsts, total = dict[NodeType, int](), 0
        for source in sources:
            firsts[source] = total
            total += h[source].shape[0]
        rows = h[sources[0]] if len(sources) == 1 else torch.cat([h[source] for source in sources])
        tables = [self.first[t] for t in adjacencies]
        given = list(adjacencies.values()), tables, [firsts[t[0]] for t in adjacencies]
        return rows, RelatedEdges.of_types(*given, (count, total))


def _joined_weights(adjacencies: Sequence[Adjacency], num_rows: int) -> Tensor | None:
    """Return the weights of joined edges, in the order of `merge_edges`."""
    weights = [each.weight for each in adjacencies if each.weight is not None]
    if not weights:
        return None
    every = torch.cat(weights)
    firsts = [0, *accumulate(each.numel() for each in weights)][:-1]
    places = [Csc(each.indptr, torch.arange(each.indices.numel())) for each in adjacencies]
    return every[merge_edges(places, firsts, num_rows, every.numel())[0].indices.long()]


def _first_of_runs(values: Tensor) -> Tensor:
    """Return bool (values): the first of each run of equal values."""
    is_first = torch.ones_like(values, dtype=torch.bool)
    is_first[1:] = values[1:] != values[:-1]
    return is_first


def _rows(indptr: Tensor, count: int) -> Tensor:
    """Return the row of each edge, int64 (edges)."""
    numbers = torch.arange(indptr.numel() - 1, device=indptr.device)
    return numbers.repeat_interleave(indptr.diff(), output_size=count)


@dataclass(frozen=True)
class RgcnOptions(StackOptions):
    """Options of an R-GCN, as set by a run."""

    unread: ClassVar[tuple[str, ...]] = ()

    relation: Annotated[Text | None, Default("one relation per edge type")] = None
    """Edge column with the relation of each edge, an integer from 0. It applies to all edge types that have
    it"""
    inputs: Literal["encoded", "columns"] = "encoded"
    """Input of the first layer: the column after a linear layer per node type (encoded), or the column itself
    (columns). With columns, all node types must have columns of the same width"""


def _relations(name: str | None, context: ModelInputs) -> RelationColumn | None:
    """Return the column of relations, with the numbers of relations in the graph."""
    if name is None:
        return None
    schema, edge_types = context.graph.schema, context.sizes.edge_types
    having = [t for t in edge_types if name in schema.columns.get(t, {})]
    if not having:
        there = {" ".join(t): sorted(schema.columns.get(t, {})) for t in edge_types}
        raise ValueError(f"model.relation is {name!r}: no edge type has this column; there are {there}")
    return RelationColumn(name, {t: context.relation_count(t, name) for t in having})


class RGCN(Stack):
    """R-GCN, from "Modeling Relational Data with Graph Convolutional Networks" (2018).

    A layer computes `norm(W h + b + sum over edge types of W_e mean(h of the in-neighbors))` for each
    destination, then ReLU and dropout. All node types share W, b and norm; W_e is separate for each edge
    type.

    With `relations`, each value of an integer edge column is a relation, as if it were an edge type; the
    loader must gather the column. With the rule `khop.RelationMean(column)`, a layer estimates the mean over
    all neighbors of each relation, which exact inference computes. With other rules without weights, it
    averages the sampled edges of each relation; a relation without sampled edges adds 0, so rare relations
    have less influence than in exact inference.

    Args:
        sizes: Types, widths and counts of the graph. `for_graph` derives them.
        hidden: Width of a layer's output (default 256).
        layers: Number of layers, which is the number of blocks of a batch (default 2).
        dropout: Dropout probability of hidden values in training (default 0).
        norm: "layer" for layer normalization in each layer, "none" (default) for no normalization.
        residual: "add" adds the input of a layer to its output if the widths are equal (default "none").
        bases: Number of basis matrices: each W_e is a learned mixture of them. Use it for many edge types
            with few edges. Default 0: a separate matrix for each edge type.
        relations: Edge column of relations; default None: each edge type is one relation.
        encoder: "linear" (default) applies a linear layer per node type before the first layer. With "none"
            the input rows of all node types must have one width.
    Raises:
        ValueError: A setting is out of range, a node type lacks the input column, or input rows have
            different widths without an encoder.
    Example:
        >>> graph = khop.open_graph("debian-typed")
        >>> model = khop.models.RGCN.for_graph(graph, hidden=32, embedding=16, bases=4)
        >>> loader = khop.Loader(khop.NeighborSampler(graph, [2, 2]), graph.split("train"), 16, columns=["x"])
        >>> model(loader.batch(epoch=0, step=0)).shape
        torch.Size([16, 58])
    """

    Options = RgcnOptions
    summary = "relational GCN"
    other_kinds: ClassVar[Mapping[str, Mapping[str, str]]] = {"r-gcn": {}}

    def __init__(
        self,
        sizes: ModelSizes,
        hidden: int = 256,
        layers: int = 2,
        dropout: float = 0.0,
        norm: Norm = "none",
        residual: Residual = "none",
        bases: int = 0,
        relations: RelationColumn | None = None,
        encoder: Encoding = "linear",
    ) -> None:
        if bases < 0:
            raise ValueError(f"bases {bases}: must be at least 1, or 0 for a matrix per edge type")
        self._relations = relations

        def make_layer(
            widths: Mapping[NodeType, int],
            destinations: tuple[NodeType, ...],
            edge_types: tuple[EdgeType, ...],
            options: LayerOptions,
        ) -> RgcnLayer:
            has_own = tuple(node_type for node_type in destinations if node_type in widths)
            slots = RelationSlots.of(edge_types, relations)
            weights = RgcnWeights(has_own, slots, options, bases, _one_width(widths))
            return RgcnLayer(weights, destinations, options)

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
        bases: int = 0,
        embedding_update: EmbeddingUpdate = "dense",
        embedded_types: EmbeddedTypes = "missing",
        relations: RelationColumn | None = None,
        encoder: Encoding = "linear",
    ) -> RGCN:
        """Make a model with the types and widths of a graph.

        The other arguments are those of `SAGE.for_graph`.

        Args:
            bases: Number of basis matrices that the edge types share; default 0: a matrix per edge type.
            relations: Edge column of relations; default None: each edge type is one relation.
            encoder: "linear" (default) or "none", for which input rows of all types must have one width.
        Returns:
            The model, with new weights from torch's generator.
        """
        inputs = (column, label, outputs, embedding, embedding_update, embedded_types)
        sizes = ModelSizes.of(graph, target, *inputs)
        return cls(sizes, hidden, layers, dropout, norm, residual, bases, relations, encoder)

    @classmethod
    def build(cls, options: RgcnOptions, context: ModelInputs) -> RGCN:
        """Make the model of a run, with new weights from torch's generator."""
        shape = (context.hidden, context.layers, options.dropout, options.norm, options.added)
        encoder: Encoding = "none" if options.inputs == "columns" else "linear"
        return cls(context.sizes, *shape, options.bases, _relations(options.relation, context), encoder)

    @property
    def relations(self) -> RelationColumn | None:
        """The column of relations; None if each edge type is one relation."""
        return self._relations

    @property
    def input_columns(self) -> Mapping[Type, tuple[str, ...]]:
        """Input column of node types, and the column of relations of edge types."""
        columns: dict[Type, tuple[str, ...]] = dict(super().input_columns)
        given = self._relations
        if given is not None:
            columns |= {t: (given.column,) for t in given.counts if t in self.edge_types}
        return columns


MANY_TYPES = 16  # number of edge types without bases from which one product is used


class RgcnLayer(Layer):
    """A layer that computes many relations with one aggregation and one matrix product.

    Edge types are only combined on the CPU. On a device, each has separate kernels, which do not synchronize
    with the host, and skip the unused entries of a static shape.
    """

    weights: RgcnWeights

    def totals(self, h: Mapping[NodeType, Tensor], block: Block) -> Total:
        """Return a function that adds weighted destination rows and means of in-neighbors by relation."""
        weights, slots = self.weights, self.weights.slots
        few = len(weights.bases) or MANY_TYPES
        is_native = engine(weights.bias.device) is Engine.NATIVE
        if slots.given is None and (len(slots.first) <= few or not is_native):
            return super().totals(h, block)

        def total(node_type: NodeType, activation: Activation) -> Tensor:
            sums = LayerSum(block.dst_counts[node_type], weights.bias_of(node_type) + self._nothing(h))
            own = weights.own_of(node_type)
            if own is not None:
                sums.add_own(h[node_type], own)
            for rows, edges in slots.groups(node_type, h, block):
                self._add(sums, rows, edges)
            return sums.total(activation)

        return total

    def _nothing(self, h: Mapping[NodeType, Tensor]) -> Tensor:
        """Return 0, computed from all weights and rows, so that each has a gradient in every batch."""
        weights = self.weights
        given = [*weights.bases, *weights.neighbors.values(), weights.shares, *h.values()]
        return torch.cat([each[:0].flatten() for each in given if each is not None]).sum()

    def _add(self, sums: LayerSum, rows: Tensor, edges: RelatedEdges) -> None:
        weights, scales = self.weights, edges.scales.to(accumulator(rows.dtype))
        if weights.shares is not None:
            shares = weights.shares.index_select(0, edges.relations) * scales.unsqueeze(1)
            sums.add_product(
                segment_mixture(rows, shares, edges.indptr, edges.indices),
                torch.cat(list(weights.bases), dim=1),
            )
            return
        of_rows, of_pairs, relations = edges.pairs()
        means = segment_weighted_sum(rows, scales, of_pairs, edges.indices)
        products = grouped_linear(means, weights.table(), relations)
        every = torch.arange(relations.numel(), dtype=torch.int32, device=relations.device)
        sums.add_rows(segment_sum(products, of_rows, every))


class RgcnWeights(nn.Module):
    """One weight, bias and norm for all node types; a weight per edge type, or a mixture of `bases`."""

    def __init__(
        self,
        has_own: tuple[NodeType, ...],
        slots: RelationSlots,
        options: LayerOptions,
        bases: int,
        width: int,
    ) -> None:
        super().__init__()
        hidden = options.hidden
        self._width = width
        self._has_own = has_own
        self.slots = slots
        edge_types = tuple(slots.first)
        self.own = linear_weight(hidden, width) if has_own else None
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.norm = nn.LayerNorm(hidden) if options.norm == "layer" else None
        self.bases = nn.ParameterList(
            [linear_weight(hidden, width) for _ in range(bases if edge_types else 0)]
        )
        own_weights = () if bases else edge_types
        self.neighbors = nn.ParameterDict(
            {parameter_name(*t): self._weight(t, hidden, width) for t in own_weights}
        )
        self.shares = nn.Parameter(torch.empty(slots.count, bases)) if len(self.bases) else None
        if self.shares is not None:
            nn.init.normal_(self.shares, std=bases**-0.5)  # so that a mixture has the scale of one weight
            self.row_names = RowNames(self, "shares", slots.counts)

    def _weight(self, edge_type: EdgeType, hidden: int, width: int) -> nn.Parameter:
        """Make the weight of an edge type, or one weight per relation of its column."""
        given = self.slots.given
        if given is None or edge_type not in given.counts:
            return linear_weight(hidden, width)
        made = [linear_weight(hidden, width).detach() for _ in range(given.counts[edge_type])]
        return nn.Parameter(torch.stack(made))

    def table(self) -> Tensor:
        """Return (relations, out, in): the weights of all relations."""
        if self.shares is None:
            weights = [self.neighbors[parameter_name(*t)] for t in self.slots.first]
            return torch.cat([weight.view(-1, self.bias.numel(), self._width) for weight in weights])
        return torch.einsum("eb,boi->eoi", self.shares, torch.stack(list(self.bases)))

    def own_of(self, node_type: NodeType) -> Tensor | None:
        """Weight of all node types; None for a type without rows."""
        return self.own if node_type in self._has_own else None

    def bias_of(self, node_type: NodeType) -> Tensor:
        """Bias of all node types."""
        return self.bias

    def by_edge_type(self) -> Mapping[EdgeType, Tensor]:
        """Weights by edge type, or mixtures of the bases."""
        if self.shares is None:
            return {t: self.neighbors[parameter_name(*t)] for t in self.slots.first}
        return dict(zip(self.slots.first, self.table(), strict=True))

    def norm_of(self, node_type: NodeType) -> nn.Module | None:
        """Norm of all node types, or None."""
        return self.norm


def _one_width(widths: Mapping[NodeType, int]) -> int:
    """Return the width of the rows of all types; ValueError if widths differ, as types share a weight."""
    found = set(widths.values())
    if len(found) > 1:
        raise ValueError(
            f"input rows have widths {dict(widths)}: all node types of R-GCN share a weight; give columns "
            'and embeddings of the same width, or encoder="linear" (in a run file model.inputs = "encoded")'
        )
    return found.pop()
