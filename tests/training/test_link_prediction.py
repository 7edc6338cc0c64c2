"""Link prediction is cross-entropy or ranking loss of pairs, one loss per pair."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from khop.batch import Batch
from khop.draw import NegativeMode
from khop.models.link_scores import LinkScores
from khop.schema import EdgeType
from khop.training.link_prediction import LinkPrediction
from support.small_links import BUYS, ON, LinkBatches


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
        ValueError, match=r"links of \('user', 'buys', 'item'\): have neither labels nor negatives"
    ):
        LinkPrediction("bce").losses(output, batch)
    with pytest.raises(ValueError, match="bpr compares a link with negatives of the same source"):
        LinkPrediction("bpr").losses(output, batch)
    two = {t: replace(rows, labels=torch.ones(rows.num_links, 2)) for t, rows in batch.links.items()}
    with pytest.raises(ValueError, match=r"labels of .* are of shape \(16, 2\) for 16 pairs: bce takes one"):
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
    losses = LinkPrediction("margin", margin=0.5).losses(output, batch)
    torch.testing.assert_close(losses[:16], missing.mean(1))


def test_infonce_is_the_cross_entropy_of_the_link_among_its_negatives() -> None:
    batch, output = scored(NegativeMode.TRIPLET)
    scores = output[BUYS]
    assert scores.negatives is not None
    logits = torch.cat([scores.pairs.unsqueeze(1), scores.negatives], dim=1) / 0.2
    expected = F.cross_entropy(logits, torch.zeros(16, dtype=torch.int64), reduction="none")
    losses = LinkPrediction("infonce", temperature=0.2).losses(output, batch)
    torch.testing.assert_close(losses[:16], expected)


@pytest.mark.parametrize("name", ["margin", "temperature"])
def test_margin_and_temperature_are_above_zero(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} 0: must be above 0"):
        LinkPrediction(**{name: 0})
