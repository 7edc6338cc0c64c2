"""Counts of how often a rank's batches need each node, from batches drawn without columns."""

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
    """Return int32 (nodes) of each type: the number of batches at `positions` that contain each node.

    The batches equal the batches of the run, so the counts are exact for positions that the run reaches. If
    sampling is collective, so is this function: all ranks must count the same positions.
    """
    bare = replace(maker, features=None, device=torch.device("cpu"), on_device=RowCache.empty())
    counts = {node_type: torch.zeros(count, dtype=torch.int32) for node_type, count in num_nodes.items()}
    for position in positions:
        for node_type, ids in bare.batch(position.epoch, position.step).sample.nodes.items():
            counts[node_type][ids] += 1  # once per batch, even if the node is in several trees
    return counts
