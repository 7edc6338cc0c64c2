"""Losses and scores of labels of edges are torch's, over the edges with known labels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from khop.batch import Batch
from khop.schema import EdgeType
from khop.training.class_loss import ClassLoss
from khop.training.edge_tasks import EdgeClassification, EdgeRegression, batch_edges
from khop.training.regression import LabelScale
from support.small_links import BUYS, LinkBatches


def labeled(labels: Tensor) -> Batch:
    """A batch whose links of BUYS have these labels; others have none."""
    batch = LinkBatches(None).batch()
    links = {BUYS: replace(batch.links[BUYS], labels=labels[: batch.links[BUYS].num_links])}
    return replace(batch, sample=replace(batch.sample, links=links))


def outputs(width: int) -> dict[EdgeType, Tensor]:
    count = LinkBatches(None).batch().links[BUYS].num_links
    generator = torch.Generator().manual_seed(4)
    return {BUYS: torch.randn(count, width, generator=generator, dtype=torch.float64)}


STARS = torch.tensor([0, 2, -1, 1] * 8)
NUMBERS = torch.tensor([[1.0, 2.0], [torch.nan, 4.0], [torch.nan, torch.nan]] * 8, dtype=torch.float64)


@pytest.mark.parametrize("loss", [ClassLoss(), ClassLoss("focal", (1.0, 0.5, 3.0), 0.1)])
def test_losses_of_classes_are_those_of_known_labels(loss: ClassLoss) -> None:
    batch, output = labeled(STARS), outputs(3)
    losses = EdgeClassification("user buys item", "stars", loss=loss).losses(output, batch)
    labels = STARS[: losses.numel()]
    known = labels >= 0
    torch.testing.assert_close(losses[known], loss.of(output[BUYS][known], labels[known]))
    assert (losses[~known] == 0).all()
    if loss == ClassLoss():
        expected = F.cross_entropy(output[BUYS], labels, reduction="none", ignore_index=-1)
        torch.testing.assert_close(losses, expected)


@pytest.mark.parametrize("loss", ["mse", "mae"])
def test_losses_of_numbers_are_in_units_of_the_deviation(loss: str) -> None:
    batch, output = labeled(NUMBERS), outputs(2)
    task = EdgeRegression(BUYS, "size", loss=loss, scale=LabelScale((3.0, 1.0), (2.0, 5.0)))  # type: ignore[arg-type]
    losses = task.losses(output, batch)
    errors = (output[BUYS] - NUMBERS[: losses.numel()]) / torch.tensor([2.0, 5.0])
    expected = (errors.square() if loss == "mse" else errors.abs()).nanmean(1).nan_to_num(0.0)
    torch.testing.assert_close(losses, expected)


def test_scores_leave_unknown_labels_out() -> None:
    rows, edges = torch.eye(3)[[0, 1, 1]], torch.tensor([[3, 4, 5], [6, 7, 8]])
    task = EdgeClassification(BUYS, "stars")
    assert task.score(rows, torch.tensor([0, -1, 2]), edges) == 0.5
    numbers = torch.tensor([1.0, torch.nan, 4.0])
    assert EdgeRegression(BUYS, "price").score(rows[:, :1], numbers, edges, "mae") == 2.0


def test_an_edge_with_a_label_out_of_range_is_named() -> None:
    batch = labeled(torch.tensor([0] * 5 + [7] * 20))
    source, destination = batch_edges(batch, BUYS)[:, 5].tolist()
    named = f"edge from {source} to {destination} of .* has stars 7: must be 0 to 2, or -1"
    with pytest.raises(ValueError, match=named):
        EdgeClassification(BUYS, "stars").losses(outputs(3), batch)
    edges = torch.tensor([[3, 4], [6, 7]])
    with pytest.raises(ValueError, match=r"edge from 4 to 7 of .* has stars -2"):
        EdgeClassification(BUYS, "stars").score(torch.eye(2), torch.tensor([0, -2]), edges)


def test_missing_labels_and_nan_outputs_are_errors() -> None:
    with pytest.raises(ValueError, match=r"have no labels: give them the column, as khop.split_links\("):
        EdgeClassification(BUYS, "stars").losses(outputs(3), LinkBatches(None).batch())
    edges, rows = torch.tensor([[3, 4], [6, 7]]), torch.tensor([[0.0, 1.0], [0.0, torch.nan]])
    with pytest.raises(
        ValueError, match=r"accuracy: the model's output for the edge from 4 to 7 of .* is NaN"
    ):
        EdgeClassification(BUYS, "stars").score(rows, torch.tensor([0, 1]), edges)
    with pytest.raises(ValueError, match=r"accuracy: no edge of .* has a known stars"):
        EdgeClassification(BUYS, "stars").score(torch.eye(2), torch.tensor([-1, -1]), edges)
    with pytest.raises(ValueError, match=r"rmse: no edge of .* has a known price"):
        EdgeRegression(BUYS, "price").score(torch.eye(2)[:, :1], torch.full((2,), torch.nan), edges)
    with pytest.raises(ValueError, match=r"price of .* has 1 numbers, the model.s output is of"):
        EdgeRegression(BUYS, "price").score(torch.eye(2), torch.ones(2), edges)
