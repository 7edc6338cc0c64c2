"""Structure of models over blocks: an encoder, layers, and a linear head per target type.

`Layered` is the protocol between a model and exact inference, which runs the layers one at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from khop.arguments import LARGEST_DEPTH, mapping_of, whole_number
from khop.batch import Batch, Block
from khop.graph.rule import Rule
from khop.kernels.lazy_rows import SparseRows
from khop.models.encoder import Encoder, Encoding, ModelSizes
from khop.models.layer import LayerOptions, parameter_name
from khop.sampling.rules.uniform import UNIFORM
from khop.schema import EdgeType, NodeType, Schema, Type


@runtime_checkable
class Layered(Protocol):
    """Protocol of models whose layers can run one at a time, which exact layer-wise inference needs.

    `forward(batch)` must be `encode`, then every layer over its block, then `head`. `h` maps each node type
    to a tensor with a row per node; it may lack a type without input. A model that does not use all edge
    types may list the used ones in `edge_types`, so that exact inference only reads these.

    Example:
        >>> model = khop.models.SAGE.for_graph(khop.open_graph("debian"), hidden=64)
        >>> isinstance(model, khop.models.Layered), model.num_layers
        (True, 2)
    """

    @property
    def num_layers(self) -> int:
        """Number of blocks that a batch needs."""
        ...

    @property
    def input_columns(self) -> Mapping[Type, tuple[str, ...]] | tuple[str, ...]:
        """Columns that the model reads, by type: node columns for `encode`, edge columns for layers.

        A list of names applies to every node type that has the columns.
        """
        ...

    def encode(self, batch: Batch) -> dict[NodeType, Tensor]:
        """Compute the first layer's input, row by row.

        Args:
            batch: Batch with the input columns and node ids.
        Returns:
            Rows (nodes, width) by node type.
        """
        ...

    def layer(self, index: int, h: Mapping[NodeType, Tensor], block: Block) -> dict[NodeType, Tensor]:
        """Compute the rows of a block's destinations from the rows of its sources.

        Args:
            index: Number of the layer, from 0.
            h: Rows of the sources by node type. It may lack types that no type in `block.dst_counts` reads.
            block: Edges of this layer.
        Returns:
            Rows of the destinations by node type, for the types in `block.dst_counts`.
        """
        ...

    def head(self, node_type: NodeType, h: Tensor) -> Tensor:
        """Compute the model's output, row by row, from the rows of the last layer.

        Args:
            node_type: Type of the nodes.
            h: Rows of the last layer, (nodes, width).
        Returns:
            Outputs, a row per node.
        """
        ...


def check_num_blocks(model: Layered, batch: Batch) -> None:
    """Raise ValueError unless the batch has one block per layer."""
    if len(batch.blocks) != model.num_layers:
        raise ValueError(
            f"the batch has {len(batch.blocks)} blocks, but the model has {model.num_layers} layers: "
            "give the sampler one fanout per layer"
        )


def followed_edge_types(model: Layered, schema: Schema) -> tuple[EdgeType, ...]:
    """Edge types that the layers use: the model's `edge_types` if it has the attribute, else all."""
    known = getattr(model, "edge_types", schema.edge_types)
    return tuple(t for t in schema.edge_types if t in known)


def destination_types(
    edge_types: tuple[EdgeType, ...], targets: tuple[NodeType, ...], num_layers: int
) -> list[tuple[NodeType, ...]]:
    """Return the node types that can still reach a target at each layer; targets first."""
    found: list[tuple[NodeType, ...]] = [targets] if num_layers else []
    while len(found) < num_layers:
        sources = [edge_type[0] for edge_type in edge_types if edge_type[2] in found[0]]
        found.insert(0, tuple(dict.fromkeys((*found[0], *sources))))
    return found


# (width of each type's rows, destination types, edge types into them, options) -> a module over (rows, block)
MakeLayer = Callable[
    [Mapping[NodeType, int], tuple[NodeType, ...], tuple[EdgeType, ...], LayerOptions], nn.Module
]


class Stack(nn.Module):
    """Encoder, layers and heads over the blocks of any schema (a `khop.models.Layered`).

    Only types that can reach a target have parameters, and every batch gives all parameters a gradient.
    """

    rule: Rule = UNIFORM
    """Rule by which a sampler draws neighbors for this model, unless another one is chosen."""

    def __init__(
        self,
        sizes: ModelSizes,
        encoding: Encoding,
        layers: int,
        options: LayerOptions,
        make_layer: MakeLayer,
    ) -> None:
        super().__init__()
        if whole_number("layers", layers, most=LARGEST_DEPTH) < 1:
            raise ValueError(f"layers {layers}: must be at least 1")
        self.sizes = sizes
        inputs, *destinations = destination_types(sizes.edge_types, sizes.target_types, layers + 1)
        self.encoder = Encoder(sizes, inputs, encoding, options.hidden)
        _check_inputs(sizes, inputs, self.encoder.widths)
        self.layers = nn.ModuleList()
        widths = dict(self.encoder.widths)
        for types in destinations:
            edge_types = tuple(t for t in sizes.edge_types if t[2] in types and t[0] in widths)
            self.layers.append(make_layer(widths, types, edge_types, options))
            widths = dict.fromkeys(types, options.hidden)
        heads = {parameter_name(t): nn.Linear(options.hidden, sizes.outputs) for t in sizes.target_types}
        self.heads = nn.ModuleDict(heads)
        self.unit: nn.Module | None = None

    @property
    def num_layers(self) -> int:
        """Number of blocks that a batch needs."""
        return len(self.layers)

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """Edge types that the model uses."""
        return self.sizes.edge_types

    @property
    def input_columns(self) -> Mapping[Type, tuple[str, ...]]:
        """Input column of each node type that has it and can reach a target."""
        return dict.fromkeys(tuple(self.encoder.inputs), (self.sizes.column,))

    def depth(self, node_type: NodeType) -> int:
        """Return the number of layers up to the last one with rows of a node type: all for a target, or 0."""
        reach = destination_types(self.sizes.edge_types, self.sizes.target_types, self.num_layers)
        return max((depth for depth, types in enumerate(reach, 1) if node_type in types), default=0)

    def encode(self, batch: Batch) -> dict[NodeType, Tensor]:
        """Return (rows, width) of each node type with inputs or embeddings, in the parameters' dtype.

        While autocast is enabled, rows in its dtype are not cast.
        """
        dtype = next(self.heads.parameters()).dtype
        return {node_type: _converted(rows, dtype) for node_type, rows in self.encoder(batch).items()}

    def layer(self, index: int, h: Mapping[NodeType, Tensor], block: Block) -> dict[NodeType, Tensor]:
        """Return (destinations, hidden) of each destination type that this layer has."""
        out: dict[NodeType, Tensor] = self.layers[index](h, block)
        return out

    def embedding(self, h: Tensor, layers: int) -> Tensor:
        """Return the embeddings of nodes, (rows, hidden), from their rows after a number of layers."""
        return h

    def head(self, node_type: NodeType, h: Tensor) -> Tensor:
        """Return (rows, outputs): logits, or a decoder's input, for nodes of a target type."""
        out: Tensor = self.heads[parameter_name(node_type)](h)
        return out if self.unit is None else self.unit(out)

    def rescale(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        """Scale the outputs to the unit of the labels: times `deviation`, plus `mean`.

        Args:
            mean: Mean of the labels: one per output, or one for all. Stored with the model's weights.
            deviation: Standard deviation of the labels, in the same form.
        """
        self.unit = OutputUnit(mean, deviation)

    def forward(self, batch: Batch) -> Tensor | dict[NodeType, Tensor]:
        """Compute the outputs of a batch's seeds.

        Args:
            batch: Batch with one block per layer.
        Returns:
            A row per seed, (seeds, outputs), duplicates included; for several targets a mapping by type.
        """
        check_num_blocks(self, batch)
        h = self.encode(batch)
        for index, block in enumerate(batch.blocks):
            h = self.layer(index, h, block)
        index_of = batch.sample.seed_index
        # index_select, not h[...]: its backward adds in a fixed order if a seed occurs twice.
        rows = {
            t: h[t].index_select(0, index_of[t]) if t in index_of else h[t][:0]
            for t in self.sizes.target_types
        }
        out = {node_type: self.head(node_type, of_type) for node_type, of_type in rows.items()}
        return out[self.sizes.targets] if isinstance(self.sizes.targets, str) else out


class OutputUnit(nn.Module):
    """Rescales standardized outputs to the unit of the labels: times a deviation, plus a mean."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(deviation) or not all(map(math.isfinite, (*mean, *deviation))):
            raise ValueError(
                f"mean {list(mean)} and deviation {list(deviation)}: must be finite, and of the same length"
            )
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float64))
        self.register_buffer("deviation", torch.tensor(deviation, dtype=torch.float64))

    def forward(self, outputs: Tensor) -> Tensor:
        """Return (rows, outputs) in the unit of the labels, never in half precision."""
        wide = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        return wide * self.deviation.to(wide.dtype) + self.mean.to(wide.dtype)


def _converted(rows: Tensor, dtype: torch.dtype) -> Tensor:
    kind = rows.device.type
    is_fit = torch.is_autocast_enabled(kind) and rows.dtype == torch.get_autocast_dtype(kind)
    return rows if is_fit else rows.to(dtype)


def _check_inputs(sizes: ModelSizes, types: Sequence[NodeType], widths: Mapping[NodeType, int]) -> None:
    """Raise ValueError if the first layer lacks input rows, unless `sizes.embedding` allows it."""
    if not widths:
        raise ValueError(
            f"column {sizes.column!r}: none of the node types that reach {sizes.targets!r}, "
            f"{list(types)}, has it; name another column, or give embedding=64 for trained embeddings"
        )
    for edge_type in sizes.edge_types if sizes.embedding is None else ():
        if {edge_type[0], edge_type[2]} <= set(types) and edge_type[0] not in widths:
            raise ValueError(
                f"edge type {edge_type}: its node type {edge_type[0]!r} has no column {sizes.column!r}; give "
                "embedding=64 for trained embeddings, embedding=0 for none, or name another column"
            )


class Sequential(nn.Module):
    """Sequence of layers, one per block of a batch, that exact inference can run one at a time.

    A layer is a module with `forward(x, adjacency)`, such as a convolution of torch_geometric with its
    activation, norm and dropout. `x` has a row per source; its first `adjacency.num_dst` rows are the
    destinations, and the layer returns a row for each of them. For a graph with several node or edge types,
    `x` maps node types to rows, `adjacency` maps edge types to adjacencies, and the result maps node types to
    rows.

    Args:
        layers: Modules, the input layer first.
        column: Node column that is the first layer's input, cast to the dtype of the parameters (default
            "x").
        sparse_width: Width of a sparse column: `x` is then a `khop.SparseRows`. Default None: a dense column.
    Raises:
        ValueError: `layers` is empty, or an item is not a module.
    Example:
        >>> from torch_geometric.nn import SAGEConv
        >>> class Convolution(SAGEConv):
        ...     def forward(self, x, adjacency):
        ...         return super().forward((x, x[: adjacency.num_dst]), adjacency.edge_index)
        >>> model = khop.models.Sequential([Convolution(512, 64), Convolution(64, 58)])
    """

    def __init__(
        self, layers: Sequence[nn.Module], column: str = "x", sparse_width: int | None = None
    ) -> None:
        super().__init__()
        if not layers:
            raise ValueError("Sequential: no layers, give a list of modules with forward(x, adjacency)")
        for index, layer in enumerate(layers):
            if not isinstance(layer, nn.Module):
                raise ValueError(
                    f"Sequential: layer {index} is a {type(layer).__name__}: give a torch.nn.Module with "
                    "forward(x, adjacency)"
                )
        self.layers = nn.ModuleList(layers)
        self.column = column
        self.sparse_width = sparse_width

    @property
    def num_layers(self) -> int:
        """Number of blocks that a batch needs."""
        return len(self.layers)

    @property
    def input_columns(self) -> tuple[str, ...]:
        """Input column, for every node type that has it."""
        return (self.column,)

    def encode(self, batch: Batch) -> dict[NodeType, Tensor]:
        """Return the rows of the input column for each node type of a batch that has it."""
        dtype = next((p.dtype for p in self.parameters() if p.is_floating_point()), torch.get_default_dtype())
        found = {
            t: self._rows(of[self.column]).to(dtype) for t, of in batch.columns.items() if self.column in of
        }
        if not found:
            there = {t: sorted(of) for t, of in batch.columns.items()}
            raise ValueError(
                f"column {self.column!r}: not in this batch, which has {there}; request it from the loader, "
                f"columns=[{self.column!r}], or name another, Sequential(layers, column=...)"
            )
        return found

    def layer(self, index: int, h: Mapping[NodeType, Tensor], block: Block) -> dict[NodeType, Tensor]:
        """Apply one layer.

        Args:
            index: Number of the layer, from 0.
            h: Rows of the sources by node type.
            block: Edges of this layer.
        Returns:
            Rows of the destinations by node type.
        """
        adjacencies = block.adjacencies
        if len(block.src_counts) == len(adjacencies) == 1:
            ((node_type, x),) = h.items()
            (adjacency,) = adjacencies.values()
            return {node_type: self._checked(index, self.layers[index](x, adjacency), adjacency.num_dst)}
        into = {t: a for t, a in adjacencies.items() if t[0] in h and t[2] in block.dst_counts}
        out = self.layers[index](dict(h), into)
        mapping_of(f"output of layer {index}", out, "node types to rows, for a graph with several types")
        wanted = {t: count for t, count in block.dst_counts.items() if t in out}
        return {t: self._checked(index, out[t], count, t) for t, count in wanted.items()}

    def head(self, node_type: NodeType, h: Tensor) -> Tensor:
        """Return the last layer's rows unchanged."""
        return h

    def forward(self, batch: Batch) -> Tensor | dict[NodeType, Tensor]:
        """Compute the outputs of a batch's seeds.

        Args:
            batch: Batch with one block per layer.
        Returns:
            A row per seed, duplicates included; for several seed types a mapping by type.
        """
        check_num_blocks(self, batch)
        h = self.encode(batch)
        for index, block in enumerate(batch.blocks):
            h = self.layer(index, h, block)
        out = {t: h[t].index_select(0, rows) for t, rows in batch.sample.seed_index.items() if t in h}
        return next(iter(out.values())) if len(batch.sample.seed_index) == len(out) == 1 else out

    def _rows(self, column: Tensor) -> Tensor:
        if self.sparse_width is not None:
            return SparseRows.of(column, self.sparse_width)
        if column.dtype == torch.int32 and column.shape[1:2] == (2,) and column.dim() == 3:
            raise ValueError(
                f"column {self.column!r} has rows of indices and values: give the width of the sparse column"
                ", Sequential(layers, sparse_width=graph.schema.column(node_type, column).width)"
            )
        return column

    def _checked(self, index: int, rows: Tensor, num_dst: int, node_type: NodeType | None = None) -> Tensor:
        if rows.shape[0] != num_dst:
            of = "" if node_type is None else f" of {node_type!r}"
            raise ValueError(
                f"layer {index} returns {rows.shape[0]} rows{of} for {num_dst} destinations: call the "
                "convolution with (x, x[: adjacency.num_dst]) instead of x"
            )
        return rows
