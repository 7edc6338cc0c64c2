"""Common structure of models over blocks: an encoder, layers, and a linear head per target type."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from khop.arguments import LARGEST_DEPTH, whole_number
from khop.batch import Batch, Block
from khop.models.encoder import Encoder, Encoding
from khop.models.layer import LayerOptions
from khop.models.layered import check_num_blocks, destination_types
from khop.models.names import parameter_name
from khop.models.sizes import ModelSizes
from khop.rules.rule import Rule
from khop.rules.uniform import Uniform
from khop.schema import EdgeType, NodeType, Type

# (width of each type's rows, destination types, edge types into them, options) -> a module over (rows, block)
MakeLayer = Callable[
    [Mapping[NodeType, int], tuple[NodeType, ...], tuple[EdgeType, ...], LayerOptions], nn.Module
]


class Stack(nn.Module):
    """Encoder, layers and heads over the blocks of any schema; see `khop.models.Layered`.

    Only types that can reach a target have parameters, and all parameters take part in every batch.
    """

    rule: Rule = Uniform()
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
        """Number of layers after which a node type has its last rows: for a target, all; 0 if it has none."""
        reach = destination_types(self.sizes.edge_types, self.sizes.target_types, self.num_layers)
        return max((depth for depth, types in enumerate(reach, 1) if node_type in types), default=0)

    def encode(self, batch: Batch) -> dict[NodeType, Tensor]:
        """Return (rows, width) of each node type with inputs or embeddings, in the parameters' dtype.

        Rows that are stored in the dtype of autocast stay as they are while it is on.
        """
        dtype = next(self.heads.parameters()).dtype
        return {node_type: _converted(rows, dtype) for node_type, rows in self.encoder(batch).items()}

    def layer(self, index: int, h: Mapping[NodeType, Tensor], block: Block) -> dict[NodeType, Tensor]:
        """Return (destinations, hidden) of each destination type that this layer has."""
        out: dict[NodeType, Tensor] = self.layers[index](h, block)
        return out

    def head(self, node_type: NodeType, h: Tensor) -> Tensor:
        """Return (rows, outputs): logits, or a decoder's input, for nodes of a target type."""
        out: Tensor = self.heads[parameter_name(node_type)](h)
        return out if self.unit is None else self.unit(out)

    def rescale(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        """Give outputs in the unit of labels: the head's numbers times `deviation`, plus `mean`.

        Both have one number per output, or one for all. They are stored with the model's weights.
        """
        self.unit = OutputUnit(mean, deviation)

    def forward(self, batch: Batch) -> Tensor | dict[NodeType, Tensor]:
        """Return (seeds, outputs), duplicates included; for several targets, a mapping by type."""
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
    """Numbers times a deviation, plus a mean: standardized outputs in the unit of their labels."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(deviation) or not all(map(math.isfinite, (*mean, *deviation))):
            raise ValueError(
                f"mean {list(mean)} and deviation {list(deviation)}: must be finite, as many of both"
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
