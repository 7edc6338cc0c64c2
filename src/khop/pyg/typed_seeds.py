"""Seeds of several node types in one loader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import BaseSampler, NodeSamplerInput

from khop.arguments import as_mapping
from khop.pyg.inputs import checked_nodes
from khop.pyg.sampler import NeighborSampler
from khop.pyg.typed_data import TypedData
from khop.schema import NodeType


@dataclass(frozen=True, eq=False)
class TypedSeeds:
    """The seeds of an epoch, type after type. A batch may have seeds of several types."""

    by_type: Mapping[NodeType, NodeSamplerInput]

    @classmethod
    def of(cls, data: Any, nodes: Any, times: Any, sampler: BaseSampler) -> TypedSeeds | None:
        """Make seeds of ids or a mask per node type, None for all nodes; `times` are by type too.

        Input nodes that are not by type give None.
        """
        if not isinstance(nodes, Mapping):
            return None
        typed = TypedData.of(data)
        if typed is None or not typed.is_typed or not isinstance(sampler, NeighborSampler):
            raise ValueError(
                "input_nodes by node type are for a HeteroData and khop's sampler; give ids, or (type, ids)"
            )
        by_time = dict.fromkeys(nodes) if times is None else as_mapping(times, lambda _: {})
        if set(by_time) != set(nodes):
            raise ValueError(f"input_time: give a mapping with the times of each of {list(nodes)}")
        if not nodes:
            raise ValueError("input_nodes is an empty mapping: give a node type with its ids, a mask or None")
        by_type = {}
        for node_type, given in nodes.items():
            _, ids = checked_nodes(data, (node_type, given), by_time[node_type])
            by_type[node_type] = _inputs(typed.nodes, node_type, ids, by_time[node_type])
        return cls(by_type)

    def places(self) -> tuple[tuple[NodeType, Tensor], None]:
        """Return as many input nodes as there are seeds, for a loader that only counts them."""
        count = sum(inputs.node.numel() for inputs in self.by_type.values())
        return (next(iter(self.by_type)), torch.zeros(count, dtype=torch.int64)), None

    def at(self, places: Tensor) -> dict[NodeType, NodeSamplerInput]:
        """Return the seeds at some positions, by type, in the order of the positions."""
        found, first = {}, 0
        for node_type, inputs in self.by_type.items():
            count = inputs.node.numel()
            own = places[(places >= first) & (places < first + count)] - first
            found[node_type] = inputs[own]
            first += count
        return found


def _inputs(
    nodes: Mapping[NodeType, Any], node_type: NodeType, given: Tensor | None, times: Tensor | None
) -> NodeSamplerInput:
    ids = torch.arange(nodes[node_type].num_nodes) if given is None else given
    is_mask = ids.dtype == torch.bool
    seeds = ids.nonzero().view(-1) if is_mask else ids
    # As in torch_geometric: a mask's inputs are numbered by node, ids by their position.
    return NodeSamplerInput(seeds if is_mask else None, seeds, times, node_type)
