"""Losses of link prediction: one class each, with its settings as fields."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Gt, Le
from torch import Tensor

from khop.arguments import real_number
from khop.components import LINK_LOSSES
from khop.draw import NegativeMode
from khop.models.link_predictor import LinkScores
from khop.schema import EdgeType

Scale = Annotated[float, Gt(0), Le(1e30)]


class LinkLoss(ABC):
    """Base of losses of link prediction: a subclass is a frozen dataclass, whose fields are its options.

    A run draws negatives in this `mode`.

    Example:
        >>> isinstance(khop.MarginRanking(0.5), khop.LinkLoss)
        True
    """

    mode: ClassVar[NegativeMode] = NegativeMode.TRIPLET

    @abstractmethod
    def of_scores(self, edge_type: EdgeType, scores: LinkScores, labels: Tensor | None) -> Tensor:
        """Compute one loss per pair, (pairs).

        Args:
            edge_type: Edge type of the links, for errors.
            scores: Scores of the pairs, and of each link's negatives in triplet mode.
            labels: Label of each pair, (pairs); None if links have none.
        Returns:
            The losses.
        Raises:
            ValueError: The loss needs another mode of negatives, or labels.
        """


def differences(loss: LinkLoss, edge_type: EdgeType, scores: LinkScores) -> Tensor:
    """Return (links, k): differences between a link's score and its negatives' scores."""
    if scores.negatives is None:
        name = LINK_LOSSES.kind_of(type(loss)) or type(loss).__name__
        raise ValueError(
            f"links of {edge_type}: {name} needs triplet negatives; give the LinkSampler negatives of "
            'mode "triplet"'
        )
    return scores.pairs.unsqueeze(1) - scores.negatives


def _check_scale(name: str, value: float) -> None:
    if not 0 < real_number(name, value) < math.inf:
        raise ValueError(f"{name} {value}: must be above 0, and finite")


@dataclass(frozen=True)
class PairCrossEntropy(LinkLoss):
    """Binary cross-entropy of each pair, against labels or between a link and its negatives."""

    mode = NegativeMode.BINARY
    summary = "binary cross-entropy of pairs"

    def of_scores(self, edge_type: EdgeType, scores: LinkScores, labels: Tensor | None) -> Tensor:
        """Compute the cross-entropy of each pair."""
        if scores.negatives is not None:
            # softplus(s) is the cross-entropy of "no link", softplus(-s) that of "link".
            right = F.softplus(-scores.pairs).unsqueeze(1)
            return torch.cat([right, F.softplus(scores.negatives)], dim=1).mean(1)
        if labels is None:
            raise ValueError(
                f"links of {edge_type} have neither labels nor negatives; give the LinkSampler "
                "negatives=khop.UniformNegatives()"
            )
        if labels.shape != scores.pairs.shape:
            raise ValueError(
                f"labels of {edge_type} are of shape {tuple(labels.shape)} for {scores.pairs.numel()} pairs: "
                "bce needs one label per pair"
            )
        return F.binary_cross_entropy_with_logits(
            scores.pairs, labels.to(scores.pairs.dtype), reduction="none"
        )


@dataclass(frozen=True)
class PairwiseRanking(LinkLoss):
    """-log sigmoid of a link's score minus each negative's score (Rendle et al. 2009)."""

    summary = "Bayesian personalized ranking"

    def of_scores(self, edge_type: EdgeType, scores: LinkScores, labels: Tensor | None) -> Tensor:
        """Compute the mean over the negatives of each link."""
        return -F.logsigmoid(differences(self, edge_type, scores)).mean(1)


@dataclass(frozen=True)
class MarginRanking(LinkLoss):
    """Loss max(0, `margin` - difference between a link's score and each negative's score).

    Args:
        margin: Difference of scores above which the loss is 0, default 1.
    Raises:
        ValueError: The margin is not positive.
    Example:
        >>> task = khop.LinkPrediction(khop.MarginRanking(0.5))
    """

    summary = "margin ranking"

    margin: Scale = 1.0
    """Difference between the scores of a link and a negative from which the margin loss is 0"""

    def __post_init__(self) -> None:
        _check_scale("margin", self.margin)

    def of_scores(self, edge_type: EdgeType, scores: LinkScores, labels: Tensor | None) -> Tensor:
        """Compute the mean over the negatives of each link."""
        return F.relu(self.margin - differences(self, edge_type, scores)).mean(1)


@dataclass(frozen=True)
class InfoNce(LinkLoss):
    """Cross-entropy of a link among itself and its negatives (van den Oord et al. 2018).

    Args:
        temperature: Divisor of scores, default 1.
    Raises:
        ValueError: The temperature is not positive.
    Example:
        >>> task = khop.LinkPrediction(khop.InfoNce(temperature=0.2))
    """

    summary = "cross-entropy of a link among its negatives"

    temperature: Scale = 1.0
    """Number by which the infonce loss divides scores. A lower number gives negatives with high scores more
    weight"""

    def __post_init__(self) -> None:
        _check_scale("temperature", self.temperature)

    def of_scores(self, edge_type: EdgeType, scores: LinkScores, labels: Tensor | None) -> Tensor:
        """Compute -log of the link's share: log(1 + sum of exp(negative - link))."""
        divided = differences(self, edge_type, scores) / -self.temperature
        return F.pad(divided, (1, 0)).logsumexp(1)
