"""Counts of how often a rank's batches need each node, from batches drawn without columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from khop.loading.source import BatchRequest
from khop.sampling.sampler import Sampler
from khop.schema import NodeType


def visit_counts(
    sampler: Sampler, requests: Iterable[BatchRequest], num_nodes: Mapping[NodeType, int]
) -> dict[NodeType, Tensor]:
    """Return int32 (nodes) of each type: the number of requested batches that contain each node.

    The batches equal the batches of the run, so the counts are exact for steps that the run reaches. If
    sampling is collective, so is this function: all ranks must count the same steps.
    """
    counts = {node_type: torch.zeros(count, dtype=torch.int32) for node_type, count in num_nodes.items()}
    for request in requests:
        for node_type, ids in sampler.sample(request.seeds(), request.key).nodes.items():
            counts[node_type][ids] += 1  # once per batch, even if the node is in several trees
    return counts
