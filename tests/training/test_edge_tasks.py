"""Losses and scores of labels of edges are torch's, over the edges with known labels.

Link prediction is cross-entropy or ranking loss of pairs, one loss per pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from khop.batch import Batch
from khop.draw import NegativeMode
from khop.models.link_predictor import LinkScores
from khop.schema import EdgeType
from khop.training.edge_tasks import EdgeClassification, EdgeRegression, LinkPrediction, batch_edges
from khop.training.link_losses import InfoNce, LinkLoss, MarginRanking
from khop.training.tasks import ClassLoss, LabelScale
from support.small_links import BUYS, ON, LinkBatches


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
    with pytest.raises(
        ValueError, match=r"have no labels: give them the column, for example with khop.split_links\("
    ):
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
    with pytest.raises(
        ValueError, match=r"price of .* has 1 values per row, but the model.s output has shape"
    ):
        EdgeRegression(BUYS, "price").score(torch.eye(2), torch.ones(2), edges)


def scored(mode: NegativeMode | None) -> tuple[Batch, dict[EdgeType, LinkScores]]:
    """A batch with scores that were not computed from anything."""
    batch, random = LinkBatches(mode).batch(), torch.Generator().manual_seed(1)

    def some(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=random, dtype=torch.float64)

    output = {
        t: LinkScores(some(rows.source), None if rows.negatives is None else some(rows.negatives))
        for t, rows in batch.links.items()
    }
    return batch, output


def test_bce_of_binary_negatives_is_the_cross_entropy_of_every_pair() -> None:
    batch, output = scored(NegativeMode.BINARY)
    losses = LinkPrediction("bce").losses(output, batch)
    expected = []
    for edge_type, count in ((BUYS, 16), (ON, 7)):
        labels = torch.cat([torch.ones(count), torch.zeros(3 * count)]).double()
        probability = output[edge_type].pairs.sigmoid()
        expected.append(-(labels * probability.log() + (1 - labels) * (1 - probability).log()))
    torch.testing.assert_close(losses, torch.cat(expected))
    torch.testing.assert_close(batch.global_mean(losses), losses.mean())


def test_bce_of_triplets_is_the_mean_over_a_link_and_its_negatives() -> None:
    batch, output = scored(NegativeMode.TRIPLET)
    losses = LinkPrediction("bce").losses(output, batch)
    scores = output[ON]
    assert scores.negatives is not None
    all_of_first = torch.cat([scores.pairs[:1], scores.negatives[0]])
    expected = F.binary_cross_entropy_with_logits(all_of_first, torch.tensor([1.0, 0, 0, 0]).double())
    torch.testing.assert_close(losses[16], expected)
    assert losses.shape == (23,)
    torch.testing.assert_close(batch.global_mean(losses), losses.mean())


def test_bpr_is_minus_the_log_of_being_in_order() -> None:
    batch, output = scored(NegativeMode.TRIPLET)
    losses = LinkPrediction("bpr").losses(output, batch)
    scores = output[BUYS]
    assert scores.negatives is not None
    in_order = (scores.pairs[4] - scores.negatives[4]).sigmoid()
    torch.testing.assert_close(losses[4], -in_order.log().mean())


def test_given_labels_of_links_are_learned() -> None:
    batch, output = scored(None)
    labeled = {t: replace(rows, labels=torch.arange(rows.num_links) % 2) for t, rows in batch.links.items()}
    batch = replace(batch, sample=replace(batch.sample, links=labeled))
    losses = LinkPrediction("bce").losses(output, batch)
    torch.testing.assert_close(
        losses[:2], F.softplus(torch.stack([output[BUYS].pairs[0], -output[BUYS].pairs[1]]))
    )


def test_losses_of_one_class_are_refused() -> None:
    batch, output = scored(None)
    with pytest.raises(
        ValueError, match=r"links of \('user', 'buys', 'item'\) have neither labels nor negatives"
    ):
        LinkPrediction("bce").losses(output, batch)
    with pytest.raises(ValueError, match="bpr needs triplet negatives"):
        LinkPrediction("bpr").losses(output, batch)
    two = {t: replace(rows, labels=torch.ones(rows.num_links, 2)) for t, rows in batch.links.items()}
    with pytest.raises(ValueError, match=r"labels of .* are of shape \(16, 2\) for 16 pairs: bce needs one"):
        LinkPrediction("bce").losses(output, replace(batch, sample=replace(batch.sample, links=two)))


LINKS, NEGATIVES = torch.tensor([2.0, 0.0]), torch.tensor([[1.0, 3.0], [-1.0, -1.0]])


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("mrr", (1 / 2 + 1) / 2),
        ("roc-auc", (3 + 2) / 8),
        ("average-precision", (1 / 2 + 2 / 4) / 2),
        ("hits@10", 1.0),
        ("recall@20", 1.0),
        ("ndcg@10", (1 / math.log2(3) + 1) / 2),
    ],
)
def test_the_score_is_the_metric_that_was_chosen(metric: str, expected: float) -> None:
    task = LinkPrediction(metric=metric)  # type: ignore[arg-type]
    assert task.score(LINKS, NEGATIVES) == pytest.approx(expected)


def test_another_loss_or_metric_is_refused() -> None:
    with pytest.raises(ValueError, match=r"loss 'hinge': must be one of bce, bpr"):
        LinkPrediction("hinge")  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match="metric 'accuracy': must be one of mrr, roc-auc, average-precision, hits@K"
    ):
        LinkPrediction(metric="accuracy")  # type: ignore[arg-type]


def test_margin_is_the_missing_difference() -> None:
    batch, output = scored(NegativeMode.TRIPLET)
    scores = output[BUYS]
    assert scores.negatives is not None
    missing = (0.5 - scores.pairs.unsqueeze(1) + scores.negatives).clamp(min=0)
    losses = LinkPrediction(MarginRanking(0.5)).losses(output, batch)
    torch.testing.assert_close(losses[:16], missing.mean(1))


def test_infonce_is_the_cross_entropy_of_the_link_among_its_negatives() -> None:
    batch, output = scored(NegativeMode.TRIPLET)
    scores = output[BUYS]
    assert scores.negatives is not None
    logits = torch.cat([scores.pairs.unsqueeze(1), scores.negatives], dim=1) / 0.2
    expected = F.cross_entropy(logits, torch.zeros(16, dtype=torch.int64), reduction="none")
    losses = LinkPrediction(InfoNce(0.2)).losses(output, batch)
    torch.testing.assert_close(losses[:16], expected)


@pytest.mark.parametrize(("loss", "name"), [(MarginRanking, "margin"), (InfoNce, "temperature")])
def test_margin_and_temperature_are_above_zero(loss: Callable[[float], LinkLoss], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} 0: must be above 0"):
        loss(0)


@pytest.mark.parametrize("kind", ["bce", "bpr", "margin", "infonce"])
def test_losses_of_bfloat16_scores_are_float32(kind: str) -> None:
    batch = LinkBatches(NegativeMode.TRIPLET).batch()
    shape = batch.links[BUYS].negatives.shape  # type: ignore[union-attr]
    negatives = 4 - torch.arange(math.prod(shape)).reshape(shape) / 64
    scores = {BUYS: LinkScores(torch.full((shape[0],), 4.0), negatives)}
    coarse = {BUYS: LinkScores(scores[BUYS].pairs.bfloat16(), negatives.bfloat16())}
    exact = {BUYS: LinkScores(scores[BUYS].pairs, negatives.bfloat16().float())}
    assert LinkPrediction(kind).losses(coarse, batch).dtype == torch.float32
    assert LinkPrediction(kind).losses(coarse, batch).equal(LinkPrediction(kind).losses(exact, batch))
