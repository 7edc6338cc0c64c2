"""Node classification is cross-entropy over labels that are there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from khop.batch import Batch
from khop.training.tasks import NodeClassification
from support.small_graphs import one_type, shop

TASK = NodeClassification("node", "y")


def batch_with_labels(labels: list[int]) -> Batch:
    seeds = torch.arange(10, 10 + len(labels))
    batch = one_type().batch(seeds, [1], "node")
    return replace(batch, seed_columns={"node": {"y": torch.tensor(labels)}})


def test_losses_are_the_cross_entropy_of_each_seed() -> None:
    batch = shop().batch(torch.tensor([4, 2, 4]), [2], "item")
    output = torch.randn(3, 3)
    losses = NodeClassification("item", "y").losses(output, batch)
    expected = -output.log_softmax(dim=1)[torch.arange(3), batch.seed_column("y")]
    torch.testing.assert_close(losses, expected)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_labels_may_be_of_any_integer_dtype(dtype: torch.dtype) -> None:
    batch = batch_with_labels([0, 2, 1])
    narrow = replace(batch, seed_columns={"node": {"y": batch.seed_column("y").to(dtype)}})
    output = torch.randn(3, 3)
    assert torch.equal(
        TASK.losses(output, narrow), F.cross_entropy(output, torch.tensor([0, 2, 1]), reduction="none")
    )


@pytest.mark.parametrize(("label", "shown"), [(-1, "-1"), (3, "3")])
def test_a_seed_without_a_valid_label_is_named(label: int, shown: str) -> None:
    message = (
        f"node 12 of 'node' has y {shown}: must be 0 to 2; leave it out of the seeds or correct its label"
    )
    with pytest.raises(ValueError, match=message):
        TASK.losses(torch.zeros(4, 3), batch_with_labels([0, 1, label, -1]))
    with pytest.raises(ValueError, match=message):
        TASK.score(torch.zeros(2, 3), torch.tensor([1, label]), torch.tensor([7, 12]))


def test_the_score_is_the_metric_that_was_chosen() -> None:
    output = torch.tensor([[0.0, 1.0], [0.0, 3.0], [0.0, 2.0]])
    labels, nodes = torch.tensor([0, 1, 1]), torch.arange(3)
    assert TASK.score(output, labels, nodes) == pytest.approx(2 / 3)
    assert NodeClassification("node", "y", "roc-auc").score(output, labels, nodes) == 1.0


def test_another_metric_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"metric 'f1': must be one of \['accuracy', .*'f1-macro', .*'roc-auc'\]"
    ):
        NodeClassification("node", "y", "f1")  # type: ignore[arg-type]


def test_gradients_flow_to_the_output() -> None:
    output: Tensor = torch.zeros(2, 3, requires_grad=True)
    TASK.losses(output, batch_with_labels([0, 1])).sum().backward()
    assert output.grad is not None
    assert output.grad.abs().sum() > 0
