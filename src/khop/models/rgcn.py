"""Relational graph convolutions (Schlichtkrull et al. 2018), over the blocks of any schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from khop.batch import Block
from khop.kernels.choice import Engine, engine
from khop.kernels.grouped_linear import grouped_linear
from khop.kernels.linear_blocks import Activation
from khop.kernels.segment import accumulator, segment_sum
from khop.kernels.segment_mixture import segment_mixture
from khop.kernels.segment_weighted import segment_weighted_sum
from khop.models.encoder import Encoding
from khop.models.layer import Layer, LayerOptions, Norm, Residual, Total, linear_weight
from khop.models.layer_sum import LayerSum
from khop.models.names import RowNames, parameter_name
from khop.models.node_embedding import EmbeddingUpdate
from khop.models.related_edges import RelatedEdges, RelationColumn, RelationSlots
from khop.models.sizes import EmbeddedTypes, HasTypes, ModelSizes
from khop.models.stack import Stack
from khop.schema import EdgeType, NodeType, Type


class RGCN(Stack):
    """R-GCN with a linear head on top, and by default a linear encoder per node type below.

    A layer computes norm(W h + b + sum over edge types of W_e mean(h of the in-neighbors)) for each
    destination, then ReLU and dropout, plus h itself with `residual="add"`. All node types share W, b and
    norm, so with `encoder="none"` the input rows of all types have one width. Each edge type has its own W_e.
    With `bases` above 0, W_e is a learned mixture of `bases` matrices that all edge types share: fewer
    parameters if many edge types have few edges.

    With `relations`, each value of an integer edge column is a relation as if it were an edge type; batches
    need this column. Where few neighbors are drawn, draw them by `khop.RelationMean(column)`: a layer then
    estimates the means over all neighbors of each relation, which exact inference computes. Without weights
    of a rule it averages the drawn edges of each relation, and a relation without drawn edges adds 0, so rare
    relations count less than in exact inference.
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
        """Make an R-GCN that fits the graph; the other arguments are as in `SAGE.for_graph`."""
        inputs = (column, label, outputs, embedding, embedding_update, embedded_types)
        sizes = ModelSizes.of(graph, target, *inputs)
        return cls(sizes, hidden, layers, dropout, norm, residual, bases, relations, encoder)

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


MANY_TYPES = 16  # edge types without bases, from which they are computed in one product


class RgcnLayer(Layer):
    """A layer that computes many relations together: one aggregation, and one product for all of them.

    Edge types are together on the CPU alone. On a device each has its own kernels: they read nothing on the
    host, and pass over what a static shape has behind the last edge.
    """

    weights: RgcnWeights

    def totals(self, h: Mapping[NodeType, Tensor], block: Block) -> Total:
        """Return a function that adds own rows and the means of in-neighbors by relation, times weights."""
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
        """Return 0, computed from all weights and rows: each of them has a gradient in every batch."""
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
            nn.init.normal_(self.shares, std=bases**-0.5)  # so that a mixture is as large as one weight
            self.row_names = RowNames(self, "shares", slots.counts)

    def _weight(self, edge_type: EdgeType, hidden: int, width: int) -> nn.Parameter:
        """Make the weight of an edge type, or with a column of relations a weight for each of them."""
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
    """Return the width of the rows of all types; ValueError if they differ, as all types share a weight."""
    found = set(widths.values())
    if len(found) > 1:
        raise ValueError(
            f"input rows have widths {dict(widths)}: all node types of R-GCN share a weight; give columns "
            'and embeddings of one width, or encoder="linear", in a run file model.inputs = "encoded"'
        )
    return found.pop()
