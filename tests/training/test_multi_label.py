"""Multi-label classification: cross-entropy of each known entry."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from khop.batch import Batch
from khop.training.multi_label import MultiLabelClassification
from support.small_graphs import one_type

TASK = MultiLabelClassification("node", "y")
LABELS = torch.tensor([[1, 0, 255], [255, 255, 255], [0, 1, 1]], dtype=torch.uint8)


def batch_of(labels: torch.Tensor) -> Batch:
    batch = one_type().batch(torch.arange(labels.shape[0]), [1], "node")
    return replace(batch, seed_columns={"node": {"y": labels}})


def test_losses_are_means_over_the_known_entries_of_each_seed() -> None:
    output = torch.randn(3, 3, requires_grad=True)
    losses = TASK.losses(output, batch_of(LABELS))
    known = F.binary_cross_entropy_with_logits(output[0, :2], torch.tensor([1.0, 0.0]))
    whole = F.binary_cross_entropy_with_logits(output[2], torch.tensor([0.0, 1.0, 1.0]))
    torch.testing.assert_close(losses, torch.stack([known, torch.zeros(()), whole]))
    losses.sum().backward()
    assert output.grad is not None
    assert output.grad[1].tolist() == [0.0, 0.0, 0.0]
    assert output.grad[0, 2] == 0


def test_scores_are_of_known_entries() -> None:
    output, nodes = torch.tensor([[1.0, -1.0, 5.0], [1.0, 1.0, 1.0], [-1.0, 1.0, 1.0]]), torch.arange(3)
    assert TASK.score(output, LABELS, nodes) == 1.0
    assert TASK.score(output, LABELS, nodes, "roc-auc") == 1.0
    with pytest.raises(ValueError, match="f1-micro: no node of 'node' has a known y"):
        TASK.score(output[:1], LABELS[1:2], nodes[:1])


def test_the_constant_prediction_has_the_labels_of_most_known_entries() -> None:
    labels = torch.tensor([[1, 0, 255], [1, 1, 255], [255, 0, 255], [0, 1, 255]], dtype=torch.uint8)
    constant = TASK.constant(labels, 3)
    assert constant is not None
    assert (constant.name, constant.output.tolist()) == ("majority", [1, -1, -1])  # a tie is no majority
    outputs, nodes = constant.output.expand(4, -1), torch.arange(4)
    assert TASK.score(outputs, labels, nodes) == pytest.approx(2 * 2 / (3 + 4))
    assert TASK.score(outputs, labels, nodes, "roc-auc") == 0.5
    numbers = torch.tensor([[1.0, float("nan")], [1.0, 0.0]])
    of_numbers = TASK.constant(numbers, 2)
    assert of_numbers is not None
    assert of_numbers.output.tolist() == [1, -1]
    assert TASK.constant(torch.full((2, 3), -1), 3) is None
    assert TASK.constant(torch.empty(0, 3), 3) is None


def test_wrong_shapes_and_metrics_are_named() -> None:
    with pytest.raises(ValueError, match="give the model one output per label"):
        TASK.losses(torch.zeros(3, 2), batch_of(LABELS))
    with pytest.raises(ValueError, match="metric 'accuracy': must be one of f1-micro"):
        MultiLabelClassification("node", "y", "accuracy")  # type: ignore[arg-type]
