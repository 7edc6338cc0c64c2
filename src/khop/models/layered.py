"""Interface between a model and exact inference: a model that exposes its layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from torch import Tensor

from khop.batch import Batch, Block
from khop.schema import EdgeType, NodeType, Schema, Type


@runtime_checkable
class Layered(Protocol):
    """A model with layers that can run one at a time, each over all nodes before the next begins.

    `forward(batch)` must be `encode`, then every layer over its block, then `head`. `h` maps each node type
    to a tensor with a row per node; it may lack a type without input. A model that does not use all edge
    types may name the ones it uses in `edge_types`: exact inference then reads no others.
    """

    @property
    def num_layers(self) -> int:
        """Number of blocks that a batch needs."""
        ...

    @property
    def input_columns(self) -> Mapping[Type, tuple[str, ...]] | tuple[str, ...]:
        """Columns that the model reads: of nodes by `encode`, of edges by layers; by type.

        Names alone apply to every node type that has them.
        """
        ...

    def encode(self, batch: Batch) -> dict[NodeType, Tensor]:
        """Compute the first layer's input, row by row, from the batch's input columns and node ids."""
        ...

    def layer(self, index: int, h: Mapping[NodeType, Tensor], block: Block) -> dict[NodeType, Tensor]:
        """Compute the values of the block's destinations from its sources' values; layer 0 is the first.

        Only types in `block.dst_counts` are computed: `h` may lack the inputs of other types.
        """
        ...

    def head(self, node_type: NodeType, h: Tensor) -> Tensor:
        """Compute the model's output for nodes of one type, row by row, from the last layer's values."""
        ...


def check_num_blocks(model: Layered, batch: Batch) -> None:
    """Raise ValueError unless the batch has one block per layer."""
    if len(batch.blocks) != model.num_layers:
        raise ValueError(
            f"the batch has {len(batch.blocks)} blocks, the model {model.num_layers} layers: "
            "give the sampler one fanout per layer"
        )


def followed_edge_types(model: Layered, schema: Schema) -> tuple[EdgeType, ...]:
    """Edge types that the layers use: the model's `edge_types` if it has the attribute, else all."""
    known = getattr(model, "edge_types", schema.edge_types)
    return tuple(t for t in schema.edge_types if t in known)


def destination_types(
    edge_types: tuple[EdgeType, ...], targets: tuple[NodeType, ...], num_layers: int
) -> list[tuple[NodeType, ...]]:
    """List per layer, input layer first, the node types that can still reach a target; targets come first."""
    found: list[tuple[NodeType, ...]] = [targets] if num_layers else []
    while len(found) < num_layers:
        sources = [edge_type[0] for edge_type in edge_types if edge_type[2] in found[0]]
        found.insert(0, tuple(dict.fromkeys((*found[0], *sources))))
    return found
