"""Losses of node classification: cross-entropy and focal loss, with class weights and label smoothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from khop.arguments import check_word, instance_of, real_number
from khop.training.constants import constant

ClassLossKind = Literal["cross-entropy", "focal"]


@dataclass(frozen=True)
class ClassLoss:
    """Loss of a seed: the class weight times cross-entropy or focal loss.

    "focal" (Lin et al. 2017) multiplies the cross-entropy by (1 - p)^`gamma`, with p the probability of the
    label. `smoothing` s trains on 1 - s for the label plus s / classes for every class (Szegedy et al. 2016).
    `weights` are final: no division by the weights of a batch follows, which would depend on the ranks; see
    `class_weights`.
    """

    kind: ClassLossKind = "cross-entropy"
    weights: tuple[float, ...] | None = None  # by class; None: 1 for all
    smoothing: float = 0.0
    gamma: float = 2.0

    def __post_init__(self) -> None:
        check_word("loss", self.kind, ClassLossKind)
        if not 0 <= real_number("smoothing", self.smoothing) < 1:
            raise ValueError(f"smoothing {self.smoothing}: must be at least 0 and below 1")
        if not 0 <= real_number("gamma", self.gamma) < 1000:
            raise ValueError(f"gamma {self.gamma}: must be at least 0 and below 1000")
        for weight in self.weights or ():
            if not 0 <= real_number("class weight", weight) < float("inf"):
                raise ValueError(f"class weight {weight}: must be 0 or more, and finite")

    def of(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return (n): one loss per row of logits (n, classes), for int64 labels (n)."""
        losses = F.cross_entropy(logits, labels, reduction="none", label_smoothing=self.smoothing)
        if self.kind == "focal":
            label = F.cross_entropy(logits, labels, reduction="none") if self.smoothing else losses
            # 1 - p without cancellation; its power has no gradient at 0, where p is 1.
            losses = (-torch.expm1(-label)).clamp(min=1e-12).pow(self.gamma) * losses
        if self.weights is None:
            return losses
        if len(self.weights) != logits.shape[1]:
            raise ValueError(
                f"class weights {self.weights}: there are {logits.shape[1]} classes; give one weight for each"
            )
        weights = constant(self.weights, losses.dtype, losses.device)
        return losses * weights.index_select(0, labels)


CROSS_ENTROPY = ClassLoss()


def class_weights(labels: Tensor, classes: int, weights: Sequence[float] | None = None) -> tuple[float, ...]:
    """Return a weight per class, scaled so that the mean over `labels` is 1.

    Without `weights` they are balanced: inverse to the number of labels of a class, and 0 for a class without
    one. `labels` are those of the whole training split; -1 is left out.
    """
    instance_of("labels", labels, Tensor, "give a tensor of labels, as graph.columns has them")
    counts = torch.bincount(labels[labels >= 0].cpu().long(), minlength=classes).double()
    if counts.numel() != classes:
        raise ValueError(f"labels: {int(labels.max())} is among them, and there are {classes} classes")
    if weights is None:
        given = torch.where(counts > 0, 1 / counts, 0.0)
    else:
        given = torch.tensor(list(weights), dtype=torch.float64)
        if given.numel() != classes or not bool((given >= 0).all()):
            raise ValueError(
                f"class weights {list(weights)}: give {classes} numbers of 0 or more, one for each class"
            )
    total = float((given * counts).sum())
    if not 0 < total < float("inf"):
        raise ValueError("class weights: no label of the split has a weight above 0; give other weights")
    return tuple((given * (float(counts.sum()) / total)).tolist())
