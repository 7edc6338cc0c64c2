"""The seam between a model and exact inference: a model that exposes its layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from torch import Tensor

from khop.batch import Batch, Block
from khop.schema import EdgeType, NodeType, Schema


@runtime_checkable
class Layered(Protocol):
    """A model whose layers can be run one at a time, each over all nodes before the next begins.

    `forward(batch)` must be encode, then every layer over its block, then head. What stands in `h` is one
    tensor per node type, a row per node; a type without input may be left out of it. A model that does not
    take all edge types may name those it takes in `edge_types`: exact inference then reads no others.
    """

    @property
    def num_layers(self) -> int:
        """How many blocks a batch needs."""
        ...

    @property
    def input_columns(self) -> Mapping[NodeType, tuple[str, ...]] | tuple[str, ...]:
        """The columns that `encode` reads, per node type; names alone: of every type that has them."""
        ...

    def encode(self, batch: Batch) -> dict[NodeType, Tensor]:
        """What the first layer takes, row by row from the batch's input columns and node ids."""
        ...

    def layer(self, index: int, h: Mapping[NodeType, Tensor], block: Block) -> dict[NodeType, Tensor]:
        """The values of the block's destinations from those of its sources; layer 0 is the input layer.

        Of the types in `block.dst_counts` alone: `h` need not have what others would be computed from.
        """
        ...

    def head(self, node_type: NodeType, h: Tensor) -> Tensor:
        """The model's output for nodes of one type, row by row from what the last layer gives for them."""
        ...


def check_num_blocks(model: Layered, batch: Batch) -> None:
    """ValueError unless the batch has a block per layer."""
    if len(batch.blocks) != model.num_layers:
        raise ValueError(
            f"the batch has {len(batch.blocks)} blocks, the model {model.num_layers} layers: "
            "give the sampler one fanout per layer"
        )


def followed_edge_types(model: Layered, schema: Schema) -> tuple[EdgeType, ...]:
    """Those whose messages the layers take: the model's `edge_types` where it has these, else all."""
    known = getattr(model, "edge_types", schema.edge_types)
    return tuple(t for t in schema.edge_types if t in known)


def destination_types(
    edge_types: tuple[EdgeType, ...], targets: tuple[NodeType, ...], num_layers: int
) -> list[tuple[NodeType, ...]]:
    """Per layer, input layer first: the node types that can still reach a target; the targets come first."""
    found: list[tuple[NodeType, ...]] = [targets] if num_layers else []
    while len(found) < num_layers:
        sources = [edge_type[0] for edge_type in edge_types if edge_type[2] in found[0]]
        found.insert(0, tuple(dict.fromkeys((*found[0], *sources))))
    return found
