"""Losses of classes: focal loss, smoothing and weights whose mean over the split is 1."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from khop.training.class_loss import ClassLoss, class_weights

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.5, 0.0], [-3.0, 1.0, 4.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 1, 1])


def test_focal_loss_weighs_cross_entropy_by_the_missing_probability() -> None:
    chosen = LOGITS.softmax(1)[torch.arange(3), LABELS]
    expected = -((1 - chosen) ** 3) * chosen.log()
    torch.testing.assert_close(ClassLoss("focal", gamma=3.0).of(LOGITS, LABELS), expected)
    plain = F.cross_entropy(LOGITS, LABELS, reduction="none")
    torch.testing.assert_close(ClassLoss("focal", gamma=0.0).of(LOGITS, LABELS), plain)


def test_a_certain_label_has_no_focal_loss_and_a_finite_gradient() -> None:
    logits = torch.tensor([[200.0, 0.0]], requires_grad=True)
    loss = ClassLoss("focal", gamma=0.5).of(logits, torch.tensor([0]))
    loss.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert float(loss.detach()) < 1e-6


def test_smoothing_spreads_a_share_of_the_target_over_all_classes() -> None:
    logs = LOGITS.log_softmax(1)
    expected = -(0.7 * logs[torch.arange(3), LABELS] + 0.3 * logs.mean(1))
    torch.testing.assert_close(ClassLoss(smoothing=0.3).of(LOGITS, LABELS), expected)


def test_weights_multiply_the_losses_of_their_class_and_nothing_is_divided() -> None:
    losses = ClassLoss(weights=(0.5, 3.0, 1.0)).of(LOGITS, LABELS)
    plain = F.cross_entropy(LOGITS, LABELS, reduction="none")
    torch.testing.assert_close(losses, plain * torch.tensor([0.5, 3.0, 3.0]).double())
    with pytest.raises(ValueError, match="there are 3 classes; give one weight for each"):
        ClassLoss(weights=(1.0,)).of(LOGITS, LABELS)


@given(st.lists(st.integers(-1, 4), min_size=1).filter(lambda labels: max(labels) >= 0))
def test_weights_have_mean_one_over_the_labels(labels: list[int]) -> None:
    known = [label for label in labels if label >= 0]
    balanced = class_weights(torch.tensor(labels), 5)
    assert sum(balanced[label] for label in known) / len(known) == pytest.approx(1)
    shares = {balanced[label] * known.count(label) for label in known}
    assert max(shares) == pytest.approx(min(shares))
    given_weights = class_weights(torch.tensor(labels), 5, [1, 2, 3, 4, 5])
    assert sum(given_weights[label] for label in known) / len(known) == pytest.approx(1)
    assert given_weights[4] == pytest.approx(5 * given_weights[0])


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ValueError, match="smoothing 1: must be at least 0 and below 1"):
        ClassLoss(smoothing=1)
    with pytest.raises(ValueError, match="gamma -1: must be at least 0"):
        ClassLoss("focal", gamma=-1)
    with pytest.raises(ValueError, match="class weight -1: must be 0 or more"):
        ClassLoss(weights=(-1, 1))
    with pytest.raises(ValueError, match="labels: 3 is among them, and there are 2 classes"):
        class_weights(torch.tensor([0, 3]), 2)
    with pytest.raises(ValueError, match="give 2 numbers of 0 or more"):
        class_weights(torch.tensor([0]), 2, [1])
    with pytest.raises(ValueError, match="no label of the split has a weight above 0"):
        class_weights(torch.tensor([0]), 2, [0, 1])
