"""Regression: errors of known labels, in units of the training labels' deviation."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from khop.batch import Batch
from khop.training.tasks import LabelScale, NodeRegression
from support.small_graphs import one_type


def batch_of(labels: torch.Tensor) -> Batch:
    batch = one_type().batch(torch.arange(labels.shape[0]), [1], "node")
    return replace(batch, seed_columns={"node": {"y": labels}})


@pytest.mark.parametrize(("loss", "expected"), [("mse", [0.25, 0.0, 4.0]), ("mae", [0.5, 0.0, 2.0])])
def test_losses_are_errors_in_units_of_the_deviation_and_zero_where_the_label_is_unknown(
    loss: str, expected: list[float]
) -> None:
    task = NodeRegression("node", "y", loss, scale=LabelScale((10.0,), (2.0,)))  # type: ignore[arg-type]
    output = torch.tensor([[1.0], [7.0], [9.0]], requires_grad=True)
    losses = task.losses(output, batch_of(torch.tensor([2.0, math.nan, 5.0])))
    assert losses.tolist() == expected
    losses.sum().backward()
    assert output.grad is not None
    assert output.grad[1].tolist() == [0.0]
    assert output.grad[0] != 0


def test_several_numbers_count_as_their_mean_over_the_known_ones() -> None:
    task = NodeRegression("node", "y", scale=LabelScale((0.0, 0.0), (1.0, 2.0)))
    labels = torch.tensor([[1.0, 4.0], [math.nan, 2.0]])
    losses = task.losses(torch.tensor([[0.0, 0.0], [9.0, 0.0]]), batch_of(labels))
    assert losses.tolist() == [(1 + 4) / 2, 1.0]


def test_integer_labels_are_numbers_too() -> None:
    task = NodeRegression("node", "y", metric="mae")
    assert task.losses(torch.tensor([[1.5]]), batch_of(torch.tensor([3]))).tolist() == [2.25]
    assert task.score(torch.tensor([[1.5]]), torch.tensor([3]), torch.tensor([0])) == 1.5


def test_scores_need_a_known_label_and_outputs_that_are_numbers() -> None:
    task, nodes = NodeRegression("node", "y"), torch.tensor([4, 7])
    assert task.score(torch.zeros(2, 1), torch.tensor([math.nan, 3.0]), nodes) == 3.0
    with pytest.raises(ValueError, match="rmse: no node of 'node' has a known y"):
        task.score(torch.zeros(2, 1), torch.full((2,), math.nan), nodes)
    with pytest.raises(ValueError, match="rmse: the model's output for node 7 of 'node' is NaN"):
        task.score(torch.tensor([[0.0], [math.nan]]), torch.ones(2), nodes)
    with pytest.raises(ValueError, match=r"y of 'node' has 1 numbers, .* give the model outputs=1"):
        task.score(torch.zeros(2, 3), torch.ones(2), nodes)


def test_a_scale_is_that_of_the_known_labels_and_constant_numbers_have_deviation_one() -> None:
    labels = torch.tensor([[1.0, 5.0], [3.0, 5.0], [math.nan, 5.0]])
    assert LabelScale.of(labels) == LabelScale((2.0, 5.0), (1.0, 1.0))
    assert LabelScale.of(torch.tensor([2, 4])) == LabelScale((3.0,), (1.0,))
    with pytest.raises(ValueError, match="labels: none is known"):
        LabelScale.of(torch.full((2,), math.nan))


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ValueError, match="deviations above 0"):
        LabelScale((0.0,), (0.0,))
    with pytest.raises(ValueError, match="give as many of both"):
        LabelScale((0.0,), (1.0, 1.0))
    with pytest.raises(ValueError, match="loss 'x': must be one of mse, mae"):
        NodeRegression("node", "y", "x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="metric 'x': must be one of rmse, mae, r2"):
        NodeRegression("node", "y", metric="x")  # type: ignore[arg-type]
