"""Scores of splits from the model's outputs, exact or sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from khop.graph.features.store import FeatureStore, Rows
from khop.training.tasks import NodeObjective

_LABELS_AT_ONCE = 1 << 20


@dataclass(frozen=True, eq=False)
class SplitOutputs:
    """Outputs of a model for the nodes of a split, with their labels."""

    nodes: Tensor  # int64 (nodes)
    labels: Tensor  # (nodes, ...), as stored
    outputs: Tensor  # (nodes, outputs)
    times: Tensor | None = None  # int64 (nodes), those of the rows of a table


@dataclass(frozen=True, eq=False)
class ScoredNodes:
    """Nodes to score: those of a split, or the rows of a table."""

    nodes: Tensor  # int64 (nodes)
    labels: Tensor | None = None  # (nodes, ...); None: the column of the graph
    times: Tensor | None = None  # int64 (nodes), the time of each row; None: they have none


@dataclass(frozen=True, eq=False)
class EdgeOutputs:
    """Outputs of a model for links of one type, with their labels."""

    edges: Tensor  # int64 (2, links), global ids
    labels: Tensor  # (links, ...), as stored
    outputs: Tensor  # (links, outputs)


def labels_of(task: NodeObjective, features: FeatureStore, nodes: Tensor) -> Tensor:
    """Return the labels of nodes, as stored: (nodes, ...). Collective if columns are partitioned."""
    pieces = [
        features.gather({task.node_type: Rows(some, (task.label,))})[task.node_type][task.label]
        for some in nodes.split(_LABELS_AT_ONCE)
    ]
    return torch.cat(pieces)


OutputsOf = Callable[[Tensor, Tensor | None], Tensor]  # of nodes, and their times if they have some


def split_outputs(
    task: NodeObjective,
    features: FeatureStore,
    splits: Mapping[str, ScoredNodes],
    outputs_of: OutputsOf,
) -> dict[str, SplitOutputs]:
    """Compute the outputs of each split, with one call of `outputs_of` for the nodes of all splits.

    Either all splits have times, or none has. ValueError names a split without nodes.
    """
    for split, scored in splits.items():
        if scored.nodes.numel() == 0:
            raise ValueError(f"split {split!r} of {task.node_type!r} has no nodes to score; leave it out")
    nodes = torch.cat([scored.nodes for scored in splits.values()])
    times = [scored.times for scored in splits.values() if scored.times is not None]
    labels = {
        split: labels_of(task, features, scored.nodes) if scored.labels is None else scored.labels
        for split, scored in splits.items()
    }
    outputs = outputs_of(nodes, torch.cat(times) if times else None)
    pieces = torch.split(outputs, [scored.nodes.numel() for scored in splits.values()])
    return {
        split: SplitOutputs(splits[split].nodes, labels[split], of_split, splits[split].times)
        for split, of_split in zip(splits, pieces, strict=True)
    }


def scores_of(
    task: NodeObjective, splits: Mapping[str, SplitOutputs], extra_metrics: Sequence[str] = ()
) -> dict[str, float]:
    """Compute the task's metric for each split. Metrics in `extra_metrics` are added, as "val/f1-macro".

    ValueError names a node without a valid label.
    """
    found: dict[str, float] = {}
    for split, of_split in splits.items():
        given = of_split.outputs, of_split.labels, of_split.nodes
        found |= split_scores(split, task.metric, extra_metrics, partial(task.score, *given))
    return found


def split_scores(
    split: str, metric: str, extra_metrics: Sequence[str], score: Callable[[str], float]
) -> dict[str, float]:
    """Return the score of a split by the metric of a task, and those of metrics in `extra_metrics`."""
    return {
        split: score(metric),
        **{f"{split}/{name}": score(name) for name in extra_metrics if name != metric},
    }


def scores(
    task: NodeObjective,
    features: FeatureStore,
    splits: Mapping[str, Tensor],
    outputs_of: Callable[[Tensor], Tensor],
    extra_metrics: Sequence[str] = (),
) -> dict[str, float]:
    """Compute outputs of nodes, then the scores of each split: `scores_of` over `split_outputs`."""
    scored = {split: ScoredNodes(nodes) for split, nodes in splits.items()}
    return scores_of(
        task, split_outputs(task, features, scored, lambda nodes, _: outputs_of(nodes)), extra_metrics
    )
