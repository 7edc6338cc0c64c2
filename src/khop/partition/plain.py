"""Partitioning methods that do not read edges: at random, by id range, by a hash of the original id."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from khop.components import NoOptions
from khop.kernels.philox import WORD, philox
from khop.partition.balance import AssignRequest, PartitionContext


@dataclass(frozen=True)
class RandomParts:
    """Random parts with equal numbers of nodes of each type. Other limits hold only on average."""

    seed: int
    passes = 1

    Options = NoOptions

    @classmethod
    def build(cls, options: NoOptions, context: PartitionContext) -> RandomParts:
        """Make the method with the seed."""
        return cls(context.seed)

    def assign(self, request: AssignRequest) -> Tensor:
        """Assign a part to each node: int32 (nodes of all types)."""
        assigned = []
        for number, (node_type, count) in enumerate(request.graph.counts.items()):
            order = torch.argsort(_words(self.seed, torch.arange(count), number), stable=True)
            assigned.append(torch.empty(count, dtype=torch.int32))
            assigned[-1][order] = _shares(count, request.parts)
            request.meter.at(f"drawing parts of {node_type!r} nodes", count)
        return torch.cat(assigned)


@dataclass(frozen=True)
class RangeParts:
    """Parts of consecutive ids with equal numbers of nodes of each type.

    Useful if nearby ids already belong to connected nodes.
    """

    passes = 1

    Options = NoOptions

    @classmethod
    def build(cls, options: NoOptions, context: PartitionContext) -> RangeParts:
        """Make the method."""
        return cls()

    def assign(self, request: AssignRequest) -> Tensor:
        """Assign a part to each node: int32 (nodes of all types)."""
        request.meter.at("cutting ranges", request.numbering.num_nodes)
        return torch.cat([_shares(count, request.parts) for count in request.graph.counts.values()])


@dataclass(frozen=True)
class HashParts:
    """Parts by a hash of the original id. A node keeps its part when the graph around it changes."""

    seed: int
    passes = 1

    Options = NoOptions

    @classmethod
    def build(cls, options: NoOptions, context: PartitionContext) -> HashParts:
        """Make the method with the seed."""
        return cls(context.seed)

    def assign(self, request: AssignRequest) -> Tensor:
        """Assign a part to each node: int32 (nodes of all types)."""
        assigned = []
        for number, (node_type, count) in enumerate(request.graph.counts.items()):
            ids = request.graph.original_ids(node_type)
            words = _words(self.seed, torch.arange(count) if ids is None else ids, number)
            assigned.append((words * request.parts >> 32).int())
            request.meter.at(f"hashing ids of {node_type!r} nodes", count)
        return torch.cat(assigned)


def _words(seed: int, ids: Tensor, number: int) -> Tensor:
    """Draw a random word, int64 in [0, 2^32), for each id; `number` is the position of the node type."""
    counters = torch.stack(
        [ids & WORD, ids >> 32, torch.full_like(ids, number), torch.zeros_like(ids)], dim=1
    )
    return philox(seed, counters)[:, 0]


def _shares(count: int, parts: int) -> Tensor:
    """Return equal consecutive shares: 0, ..., 0, 1, ..., 1, ..., int32 (count)."""
    return (torch.arange(count) * parts // max(count, 1)).int()
