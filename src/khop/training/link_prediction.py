"""Link prediction: losses of a model of links, and metrics on held-out links."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from khop.arguments import check_word, real_number
from khop.batch import Batch
from khop.models.link_scores import LinkScores, joined
from khop.schema import EdgeType
from khop.training.ranking import Places, average_precision, binary_roc_auc

LinkLoss = Literal["bce", "bpr", "margin", "infonce"]
LinkMetric = str  # "mrr", "roc-auc", "average-precision", "hits@10", "recall@10", "ndcg@10" or any other k
# Metrics of scored pairs that are positive or not.
PAIR_METRICS: Mapping[str, Callable[[Tensor, Tensor], float]] = {
    "roc-auc": binary_roc_auc,
    "average-precision": average_precision,
}
# Metrics of the first k places. Each link is ranked alone, among its own negatives: its recall is a hit.
AT_K: Mapping[str, Callable[[Places, int], float]] = {
    "hits@K": Places.hits,
    "recall@K": Places.hits,
    "ndcg@K": Places.ndcg,
}
LINK_METRICS = ("mrr", *PAIR_METRICS, *AT_K)
LINK_METRIC_PATTERN = r"^(mrr|roc-auc|average-precision|(hits|recall|ndcg)@[1-9][0-9]{0,17})$"


def check_link_metric(name: str) -> str:
    """Return the name; ValueError unless it is a metric of links."""
    if not isinstance(name, str) or not re.fullmatch(LINK_METRIC_PATTERN, name):
        raise ValueError(
            f"metric {name!r}: must be one of {', '.join(LINK_METRICS)}, with a whole number K from 1 on, "
            "such as hits@50"
        )
    return name


def link_metric(name: LinkMetric, links: Tensor, negatives: Tensor, given: Tensor | None = None) -> float:
    """Compute a metric of links, each compared with its own negatives; higher is better.

    Args:
        name: Name of the metric.
        links: Scores of the links, (n).
        negatives: Scores of the negatives of each link, (n, k).
        given: False for entries of `negatives` that pad a row, bool (n, k); None if all are negatives.
    Returns:
        The metric, from 0 to 1.
    Raises:
        ValueError: If there is no such metric, or a score is NaN or infinite.
    """
    kind, _, k = check_link_metric(name).partition("@")
    if kind in PAIR_METRICS:
        compared = negatives.flatten() if given is None else negatives[given]
        positive = torch.cat([torch.ones_like(links), torch.zeros_like(compared)])
        return PAIR_METRICS[kind](torch.cat([links, compared]), positive)
    places = Places.of(links, negatives, given)
    return AT_K[f"{kind}@K"](places, int(k)) if k else places.mean_reciprocal_rank()


@dataclass(frozen=True)
class LinkPrediction:
    """Task: distinguish the links of an edge type from pairs without a link.

    "bce" is the binary cross-entropy of each pair, against labels or between a link and its negatives. "bpr"
    (Rendle et al. 2009) is -log sigmoid of a link's score minus each negative's score. "margin" is
    max(0, `margin` - that difference). "infonce" (van den Oord et al. 2018) is the cross-entropy of the link
    among itself and its negatives, with scores divided by `temperature`.
    """

    loss: LinkLoss = "bce"
    metric: LinkMetric = "mrr"
    margin: float = 1.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_word("loss", self.loss, LinkLoss)
        for name in ("margin", "temperature"):
            if not 0 < real_number(name, getattr(self, name)) < math.inf:
                raise ValueError(f"{name} {getattr(self, name)}: must be above 0, and finite")
        check_link_metric(self.metric)

    def losses(self, output: Mapping[EdgeType, LinkScores], batch: Batch) -> Tensor:
        """Return (pairs): one loss per pair of all edge types, as input of `batch.global_mean`."""
        labels = [batch.links[t].labels for t in output]
        together = joined(output)
        given = [each for each in labels if each is not None]
        is_plain = len(given) in (0, len(labels)) and all(each.dim() == 1 for each in given)
        if together is not None and is_plain:
            # One operation for all edge types, however many there are.
            return self._losses(next(iter(output)), together, torch.cat(given) if given else None)
        return torch.cat(
            [self._losses(t, output[t], of_type) for t, of_type in zip(output, labels, strict=True)]
        )

    def score(self, links: Tensor, negatives: Tensor) -> float:
        """Compute the metric of links (n), each compared with its own negatives (n, k)."""
        return link_metric(self.metric, links, negatives)

    def _losses(self, edge_type: EdgeType, scores: LinkScores, labels: Tensor | None) -> Tensor:
        match self.loss:
            case "bpr":
                return -F.logsigmoid(self._differences(edge_type, scores)).mean(1)
            case "margin":
                return F.relu(self.margin - self._differences(edge_type, scores)).mean(1)
            case "infonce":
                # -log of the link's share: log(1 + sum of exp(negative - link)).
                differences = self._differences(edge_type, scores) / -self.temperature
                return F.pad(differences, (1, 0)).logsumexp(1)
        if scores.negatives is not None:
            # softplus(s) is the cross-entropy of "no link", softplus(-s) that of "link".
            right = F.softplus(-scores.pairs).unsqueeze(1)
            return torch.cat([right, F.softplus(scores.negatives)], dim=1).mean(1)
        if labels is None:
            raise ValueError(
                f"links of {edge_type}: have neither labels nor negatives to learn "
                "from; give the LinkSampler negatives=khop.UniformNegatives()"
            )
        if labels.shape != scores.pairs.shape:
            raise ValueError(
                f"labels of {edge_type} are of shape {tuple(labels.shape)} for {scores.pairs.numel()} "
                "pairs: bce takes one number for each"
            )
        return F.binary_cross_entropy_with_logits(
            scores.pairs, labels.to(scores.pairs.dtype), reduction="none"
        )

    def _differences(self, edge_type: EdgeType, scores: LinkScores) -> Tensor:
        """Return (links, k): differences between a link's score and its negatives' scores."""
        if scores.negatives is None:
            raise ValueError(
                f"links of {edge_type}: {self.loss} compares a link with negatives of the same source, and "
                'these are binary or none; give the LinkSampler negatives of mode "triplet"'
            )
        return scores.pairs.unsqueeze(1) - scores.negatives
