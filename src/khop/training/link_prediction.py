"""Link prediction: losses of a model of links, and metrics on held-out links."""

from __future__ import annotations

import math
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
LinkMetric = Literal[
    "mrr", "roc-auc", "average-precision", "hits@10", "ndcg@10", "ndcg@20", "recall@10", "recall@20"
]


def _flat(metric: Callable[[Tensor, Tensor], float]) -> Callable[[Tensor, Tensor], float]:
    """Adapt a metric to scores of links and of their negatives, joined in one list."""

    def of(links: Tensor, negatives: Tensor) -> float:
        positive = torch.cat([torch.ones_like(links), torch.zeros_like(negatives).flatten()])
        return metric(torch.cat([links, negatives.flatten()]), positive)

    return of


# (scores of links (n), scores of their negatives (n, k)) -> metric; higher is better.
LINK_METRICS: Mapping[LinkMetric, Callable[[Tensor, Tensor], float]] = {
    "mrr": lambda links, negatives: Places.of(links, negatives).mean_reciprocal_rank(),
    "roc-auc": _flat(binary_roc_auc),
    "average-precision": _flat(average_precision),
    "hits@10": lambda links, negatives: Places.of(links, negatives).hits(10),
    "ndcg@10": lambda links, negatives: Places.of(links, negatives).ndcg(10),
    "ndcg@20": lambda links, negatives: Places.of(links, negatives).ndcg(20),
    # Each link is ranked alone, among its own negatives: its recall is a hit.
    "recall@10": lambda links, negatives: Places.of(links, negatives).hits(10),
    "recall@20": lambda links, negatives: Places.of(links, negatives).hits(20),
}


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
        if self.metric not in LINK_METRICS:
            raise ValueError(f"metric {self.metric!r}: must be one of {sorted(LINK_METRICS)}")

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
        return LINK_METRICS[self.metric](links, negatives)

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
