"""Checks that span several arrays: the splits of a node type, and edge types and their reverses."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from torch import Tensor

from khop.graph.inputs import Given
from khop.schema import EdgeType, NodeType

_PAIRS_AT_ONCE = 1 << 20


def split_group(name: str) -> str:
    """Return the part of a split's name after the first dot.

    "train.3" and "val.3" belong to one group, and so do "train" and "val".
    """
    return name.partition(".")[2]


def splits_of_masks(
    masks: Mapping[str, Tensor], node_type: NodeType, splits: dict[str, dict[NodeType, Tensor]]
) -> None:
    """Add the marked nodes of masks to `splits`. A split without nodes is left out, with a warning."""
    for name, mask in masks.items():
        if bool(mask.any()):
            splits.setdefault(name, {})[node_type] = mask.nonzero().view(-1)
        else:
            said = f"the mask of {name!r} marks no {node_type!r} node: the split is left out"
            warnings.warn(said, stacklevel=4)


def check_splits(splits: Mapping[str, Given], count: int, nodes: str) -> None:
    """Raise ValueError unless each split has distinct ids of `nodes` and splits of one group are disjoint."""
    names = list(splits)
    taken: dict[str, npt.NDArray[np.int16]] = {}  # group -> the number of each node's split, or 0
    for number, (name, ids) in enumerate(splits.items(), start=1):
        if len(ids) == 0:
            raise ValueError(f"{ids.name} is empty; leave the split out or give it nodes")
        ids.check_ids(count, nodes, "drop the id or raise the count")
        split_of = taken.setdefault(split_group(name), np.zeros(count, np.int16))
        before = split_of[ids.values]
        if before.any():
            at = int(np.argmax(before != 0))
            other = names[before[at] - 1]
            raise ValueError(
                f"{ids.name}[{at}] is {ids.values[at]}: the node is in split {other!r} too; drop it in one, "
                f"or put the split in another group by its name, such as '{name}.b'"
            )
        split_of[ids.values] = number
        if np.count_nonzero(split_of == number) != len(ids):
            at = _first_repeated(ids.values)
            raise ValueError(
                f"{ids.name}[{at}] is {ids.values[at]}: that node is in the split already; drop one"
            )


def checked_reverses(
    claimed: Mapping[EdgeType, EdgeType], edges: Mapping[EdgeType, tuple[Given, Given]]
) -> dict[EdgeType, EdgeType]:
    """Return `claimed` with both directions.

    ValueError unless the edges of each type are the edges of its reverse in the opposite direction.
    """
    reverses = dict(claimed)
    for edge_type, reverse in claimed.items():
        if reverse not in edges:
            raise ValueError(
                f"edge type {edge_type}: reverse_of {reverse}: no such edge type; there are {list(edges)}"
            )
        if (edge_type[0], edge_type[2]) != (reverse[2], reverse[0]):
            raise ValueError(
                f"edge type {edge_type}: reverse_of {reverse}: it must lead from destination to source"
            )
        if reverses.setdefault(reverse, edge_type) != edge_type:
            raise ValueError(
                f"edge type {edge_type}: reverse_of {reverse}, whose reverse is {reverses[reverse]}; name one"
            )
        if not are_reverses(edges[edge_type], edges[reverse]):
            counts = [len(edges[one][0]) for one in (edge_type, reverse)]
            raise ValueError(
                f"edge type {edge_type}: reverse_of {reverse}: some edge has no reverse there "
                f"({counts[0]:,} and {counts[1]:,} edges); add it, or leave reverse_of out"
            )
    return reverses


def are_reverses(edges: tuple[Given, Given], others: tuple[Given, Given]) -> bool:
    """Return True if `others` are the same edges in the opposite direction, in any order."""
    (sources, destinations), (others_sources, others_destinations) = edges, others
    return len(sources) == len(others_sources) and _digest(sources, destinations) == _digest(
        others_destinations, others_sources
    )


def _first_repeated(ids: npt.NDArray[np.integer]) -> int:
    first = np.zeros(len(ids), bool)
    first[np.unique(ids, return_index=True)[1]] = True
    return int(np.argmin(first))


def _digest(first: Given, second: Given) -> int:
    """Return a digest of the pairs that does not depend on their order.

    Different pairs collide with probability 2^-64. Sorting the pairs instead would need more memory.
    """
    total = 0
    for start in range(0, len(first), _PAIRS_AT_ONCE):
        pairs = slice(start, start + _PAIRS_AT_ONCE)
        mixed = first.values[pairs].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed += second.values[pairs].astype(np.uint64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            mixed ^= mixed >> np.uint64(shift)
            mixed *= np.uint64(factor)
        total += int(mixed.sum())
    return total % (1 << 64)
