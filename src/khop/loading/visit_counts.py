"""How often the batches of a rank need each node, by drawing them without their columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from khop.features.row_cache import RowCache
from khop.loading.loader import BatchMaker, Position
from khop.schema import NodeType


def visit_counts(
    maker: BatchMaker, positions: Iterable[Position], num_nodes: Mapping[NodeType, int]
) -> dict[NodeType, Tensor]:
    """int32 (nodes) of each type: in how many of the batches at `positions` a node is.

    The batches are those of the run itself, so of positions that the run comes to, the counts are exact.
    Where sampling is collective, so is this: all ranks count the same positions.
    """
    bare = replace(maker, features=None, device=torch.device("cpu"), on_device=RowCache.empty())
    counts = {node_type: torch.zeros(count, dtype=torch.int32) for node_type, count in num_nodes.items()}
    for position in positions:
        for node_type, ids in bare.batch(position.epoch, position.step).sample.nodes.items():
            counts[node_type][ids] += 1  # once, however many trees of the batch have it
    return counts
