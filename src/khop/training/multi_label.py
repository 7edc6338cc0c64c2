"""Multi-label classification: predict any number of labels per node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from khop.batch import Batch
from khop.schema import NodeType
from khop.training.baselines import Constant
from khop.training.metrics import check_outputs, known_metric
from khop.training.multi_label_metrics import MULTI_LABEL_METRICS, UNKNOWN, MultiLabelMetric, entries_of


@dataclass(frozen=True)
class MultiLabelClassification:
    """Task: predict for nodes of one type which labels they have, by the binary cross-entropy of each label.

    An output above 0 predicts the label. Unknown entries are skipped: a seed's loss is the mean over its
    known entries, and 0 if there are none.
    """

    node_type: NodeType
    label: str  # column (nodes, labels) of 1 and 0; unknown: negative numbers, NaN, 255 of uint8
    metric: MultiLabelMetric = "f1-micro"

    def __post_init__(self) -> None:
        known_metric(self.metric, MULTI_LABEL_METRICS)

    @property
    def metrics(self) -> Sequence[str]:
        """Names that `score` takes."""
        return tuple(MULTI_LABEL_METRICS)

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Return (seeds): the mean cross-entropy over the known entries of each seed."""
        rows = output.to(torch.promote_types(output.dtype, torch.float32))
        entries = self._entries(batch.seed_column(self.label, self.node_type), rows)
        known = entries != UNKNOWN
        targets = (entries == 1).to(rows.dtype)
        losses = F.binary_cross_entropy_with_logits(rows, targets, reduction="none")
        return (losses * known).sum(1) / known.sum(1).clamp(min=1)

    def score(self, output: Tensor, labels: Tensor, nodes: Tensor, metric: str | None = None) -> float:
        """Compute a metric, by default the task's, over the known entries.

        ValueError names a node with a NaN output, and if no entry is known.
        """
        name = known_metric(metric or self.metric, MULTI_LABEL_METRICS)
        check_outputs(output, nodes, self.node_type, name)
        entries = self._entries(labels, output)
        if bool((entries == UNKNOWN).all()):
            raise ValueError(f"{name}: no node of {self.node_type!r} has a known {self.label}, it needs one")
        return MULTI_LABEL_METRICS[name](output, entries)

    def constant(self, labels: Tensor, outputs: int) -> Constant | None:
        """Return the labels that most nodes with a known entry have; None if no entry is known."""
        return Constant.majorities(entries_of(labels))

    def _entries(self, labels: Tensor, output: Tensor) -> Tensor:
        if labels.shape != output.shape:
            raise ValueError(
                f"{self.label} of {self.node_type!r} is of shape {tuple(labels.shape)}, the model's output "
                f"of {tuple(output.shape)}: give the model one output per label"
            )
        return entries_of(labels)
