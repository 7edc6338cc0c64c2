"""Balance limits: quantities that all parts share equally, within a slack."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from khop.graph.csc_graph import CscGraph
from khop.graph.folder import GraphFolder
from khop.graph.progress import Meter
from khop.kernels.assign import Limit
from khop.schema import NodeType

NODES, EDGES, BYTES = "nodes", "edges", "bytes"
_MOST_SPLITS = 8  # `Balance.members` has one byte per node, and one bit per split


@dataclass(frozen=True, eq=False)
class Numbering:
    """A single numbering of the nodes of all types, one type after another in the order of the schema."""

    node_types: tuple[NodeType, ...]
    first_node: tuple[int, ...]  # number of the first node of each type, then the number of all nodes

    @classmethod
    def of(cls, counts: Mapping[NodeType, int]) -> Numbering:
        """Number the nodes of a graph, given the node count of each type."""
        first = [0]
        for count in counts.values():
            first.append(first[-1] + count)
        return cls(tuple(counts), tuple(first))

    @property
    def num_nodes(self) -> int:
        """The number of nodes of all types."""
        return self.first_node[-1]

    def first(self, node_type: NodeType) -> int:
        """Return the number of node 0 of a type."""
        return self.first_node[self.node_types.index(node_type)]

    def by_type(self, values: Tensor) -> dict[NodeType, Tensor]:
        """Split a tensor with one value per node by node type."""
        spans = zip(self.node_types, self.first_node, self.first_node[1:], strict=False)
        return {node_type: values[begin:end] for node_type, begin, end in spans}


@dataclass(frozen=True, eq=False)
class Balance:
    """The limits of a part, by the name used in reports."""

    limits: Mapping[str, Limit]
    totals: Mapping[str, int]  # over all parts
    members: Tensor  # uint8 (nodes): one bit per split; empty if no split is balanced


@dataclass(frozen=True, eq=False)
class AssignRequest:
    """The input of a partitioning method, which assigns a part to every node of a graph."""

    graph: CscGraph
    numbering: Numbering
    balance: Balance
    parts: int
    threads: int
    meter: Meter


class Partitioner(Protocol):
    """A partitioning method: assigns a part to each node.

    A component of the family `khop.partition.methods.PARTITIONERS` makes one:
    `build(options, context)` with a `PartitionContext`.
    """

    @property
    def passes(self) -> int:
        """The number of passes over the nodes, for the progress bar."""
        ...

    def assign(self, request: AssignRequest) -> Tensor:
        """Assign a part to each node: int32 (nodes of all types)."""
        ...


@dataclass(frozen=True)
class PartitionContext:
    """Inputs of a partitioner's `build`, beside its options."""

    parts: int
    seed: int


def balance_of(
    folder: GraphFolder, numbering: Numbering, parts: int, names: Sequence[str], slack: float
) -> Balance:
    """Compute limits: no part holds more than 1 + slack times its share of each quantity in `names`.

    "nodes" sets one limit per node type. "edges" counts edges by their destinations. "bytes" counts the
    bytes of node columns. Any other name is a split, such as "train".
    """
    if not slack >= 0 or math.isinf(slack):
        raise ValueError(f"slack {slack}: must be a number from 0 on, as 0.05 for 5 %")
    splits = [name for name in names if name not in (NODES, EDGES, BYTES)]
    _check_names(folder, names, splits)
    shared: dict[str, _Shared] = {}
    for name in names:
        shared |= _shared_out(folder, numbering, name, splits)
    limits = {
        label: Limit(of.by_type, _capacity(of.total, parts, slack), of.member, of.by_degree)
        for label, of in shared.items()
    }
    totals = {label: of.total for label, of in shared.items()}
    return Balance(limits, totals, _members(folder, numbering, splits))


@dataclass(frozen=True)
class _Shared:
    """A balanced quantity: like `Limit`, with the total over all parts instead of the capacity of a part."""

    by_type: tuple[int, ...]
    total: int
    member: int = 0
    by_degree: bool = False


def _shared_out(
    folder: GraphFolder, numbering: Numbering, name: str, splits: Sequence[str]
) -> dict[str, _Shared]:
    """Return the quantities that a name of `balance_of` selects, by the name used in reports."""
    types, ones = numbering.node_types, tuple(1 for _ in numbering.node_types)
    counts = [folder.num_nodes(node_type) for node_type in types]
    if name == NODES:
        return {
            NODES if len(types) == 1 else f"{node_type} nodes": _Shared(_only(numbering, node_type), count)
            for node_type, count in zip(types, counts, strict=True)
        }
    if name == EDGES:
        edges = sum(folder.num_edges(edge_type) for edge_type in folder.schema.edge_types)
        return {EDGES: _Shared(ones, edges, by_degree=True)}
    if name == BYTES:
        by_type = tuple(_row_bytes(folder, node_type) for node_type in types)
        return {BYTES: _Shared(by_type, sum(b * n for b, n in zip(by_type, counts, strict=True)))}
    seeds = sum(ids.numel() for ids in folder.split(name).values())
    return {name: _Shared(ones, seeds, member=1 << splits.index(name))}


def _check_names(folder: GraphFolder, names: Sequence[str], splits: Sequence[str]) -> None:
    known = [NODES, EDGES, BYTES, *folder.split_names]
    for name in names:
        if name not in known:
            raise ValueError(f"balance {name!r}: parts can be balanced by {', '.join(known)}")
    if len(set(names)) != len(names) or not names:
        raise ValueError(f"balance {list(names)}: give one name or more, each once")
    if len(splits) > _MOST_SPLITS:
        raise ValueError(f"balance by {len(splits)} splits: at most {_MOST_SPLITS}")


def _only(numbering: Numbering, node_type: NodeType) -> tuple[int, ...]:
    return tuple(int(other == node_type) for other in numbering.node_types)


def _row_bytes(folder: GraphFolder, node_type: NodeType) -> int:
    columns = folder.columns()[node_type].values()
    return sum(column[:1].numel() * column.element_size() for column in columns)


def _capacity(total: int, parts: int, slack: float) -> int:
    return max(-(-total // parts), int(total * (1 + slack) / parts))


def _members(folder: GraphFolder, numbering: Numbering, splits: Sequence[str]) -> Tensor:
    members = torch.zeros(numbering.num_nodes if splits else 0, dtype=torch.uint8)
    for bit, name in enumerate(splits):
        for node_type, ids in folder.split(name).items():
            members[ids + numbering.first(node_type)] |= 1 << bit
    return members
