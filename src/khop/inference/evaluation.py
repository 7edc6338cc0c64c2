"""Scores of splits, independent of the way the model's outputs are computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from khop.features.store import FeatureStore, Rows
from khop.training.tasks import NodeObjective


def scores(
    task: NodeObjective,
    features: FeatureStore,
    splits: Mapping[str, Tensor],
    outputs_of: Callable[[Tensor], Tensor],
    beside: Sequence[str] = (),
) -> dict[str, float]:
    """Compute the task's metric for each split, with one call of `outputs_of` for the nodes of all splits.

    Metrics in `beside` are added under names such as "val/f1-macro". ValueError names a split without nodes,
    or a node without a valid label.
    """
    for split, nodes in splits.items():
        if nodes.numel() == 0:
            raise ValueError(f"split {split!r} of {task.node_type!r}: has no nodes to score; leave it out")
    nodes = torch.cat(list(splits.values()))
    rows = Rows(nodes, (task.label,))
    labels = features.gather({task.node_type: rows})[task.node_type][task.label]
    sizes = [of_split.numel() for of_split in splits.values()]
    pieces = zip(*(torch.split(rows, sizes) for rows in (outputs_of(nodes), labels, nodes)), strict=True)
    found: dict[str, float] = {}
    for split, (outputs, of_split, ids) in zip(splits, pieces, strict=True):
        found[split] = task.score(outputs, of_split, ids)
        for metric in beside:
            if metric != task.metric:
                found[f"{split}/{metric}"] = task.score(outputs, of_split, ids, metric)
    return found
