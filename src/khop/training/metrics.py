"""Metrics of classification, regression and ranking, exact in the presence of ties.

Among equal scores, ROC AUC counts a pair as half. A positive alone has the mean of its possible ranks, as in
OGB's evaluators. Gains of several positives of a query are expected values over random orders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor

from khop.arguments import whole_number
from khop.schema import NodeType

LOOK_FOR_NAN = "look for NaN in the model's weights and in the columns"


def binary_roc_auc(scores: Tensor, positive: Tensor) -> float:
    """Fraction of (positive, negative) pairs in the right order, ties count half: counted exactly."""
    check_scores(scores, "roc-auc")
    positive = positive.bool()
    order = torch.unique(scores, return_inverse=True)[1]
    levels = int(order.max()) + 1 if order.numel() else 0
    positives = torch.bincount(order[positive], minlength=levels)
    negatives = torch.bincount(order[~positive], minlength=levels)
    pairs = int(positives.sum()) * int(negatives.sum())
    if pairs == 0:
        kind = "positive" if positive.any() else "negative"
        raise ValueError(f"roc-auc: all {positive.numel()} labels are {kind}, and both kinds are required")
    # Halves are counted as integers: Python's division of two integers is correctly rounded.
    halves = int((positives * (2 * negatives.cumsum(0) - negatives)).sum())
    return halves / (2 * pairs)


def average_precision(scores: Tensor, positive: Tensor) -> float:
    """Area under the precision-recall curve, computed by steps.

    It is the sum of the precision at each distinct score, weighted by the share of positives with that score.
    Equal scores are one step, as in scikit-learn.
    """
    check_scores(scores, "average precision")
    positive = positive.bool()
    if not positive.any():
        raise ValueError(f"average precision: none of {positive.numel()} labels is positive, one is required")
    level = torch.unique(-scores, return_inverse=True)[1]
    found = torch.bincount(level, positive.double())
    precision = found.cumsum(0) / torch.bincount(level).cumsum(0)
    return float((precision * found).sum() / found.sum())


@dataclass(frozen=True)
class Places:
    """Rank of each positive among its negatives: from above + 1 to above + tied + 1, all equally likely.

    A positive alone has the mean of these ranks, as in the evaluators of OGB and TGB. Gains of several
    positives of a query, `reached` and others, are expected values over the ranks.
    """

    above: Tensor  # int64 (positives): negatives with a higher score
    tied: Tensor  # int64 (positives): negatives with the same score

    @classmethod
    def of(cls, positives: Tensor, negatives: Tensor, given: Tensor | None = None) -> Places:
        """Compute places from scores: (n) of the positives, (n, k) of each one's negatives.

        `given`, bool (n, k), is False for entries that pad a row; None if all are negatives.
        """
        check_scores(positives, "ranking")
        own = positives.unsqueeze(1)
        above, tied = negatives > own, negatives == own
        if given is not None:
            above, tied, negatives = above & given, tied & given, negatives.masked_fill(~given, 0)
        check_scores(negatives, "ranking")
        return cls(above.sum(1), tied.sum(1))

    @property
    def ranks(self) -> Tensor:
        """Mean of the possible ranks, float64 (positives)."""
        return 1 + self.above + self.tied.double() / 2

    def mean_reciprocal_rank(self) -> float:
        """Mean of 1 / rank."""
        self._check_not_empty("mrr")
        return float((1 / self.ranks).mean())

    def hits(self, k: int) -> float:
        """Fraction of positives with a rank of at most k."""
        self._check_not_empty(f"hits@{k}")
        check_k(k)
        return float((self.ranks <= k).double().mean())

    def ndcg(self, k: int) -> float:
        """Mean of 1 / log2(rank + 1), 0 for ranks above k: NDCG of one positive each."""
        self._check_not_empty(f"ndcg@{k}")
        check_k(k)
        return float((1 / torch.log2(self.ranks + 1)).masked_fill(self.ranks > k, 0).mean())

    def discounted_gains(self, k: int) -> Tensor:
        """Return float64 (positives): 1 / log2(place + 1) for the first k places, 0 for later ones."""
        return self._expected(discounts(min(k, self._last())))

    def reached(self, k: int) -> Tensor:
        """Return float64 (positives): the probability of a place among the first k."""
        return self._expected(torch.ones(min(k, self._last()), dtype=torch.float64))

    def precisions(self, k: int, above: Tensor, tied: Tensor) -> Tensor:
        """Return float64 (positives): the precision at the place if it is among the first k, else 0.

        `above` and `tied` count the other positives of the query with a higher and with the same score.
        """
        share = tied / self.tied.clamp(min=1).double()  # of the candidates with the same score
        reciprocals = self._expected(1 / torch.arange(1, min(k, self._last()) + 1, dtype=torch.float64))
        return share * self.reached(k) + (above + 1 - share * (self.above + 1)) * reciprocals

    def _last(self) -> int:
        """Return the last place of any positive, at least 1."""
        return int((self.above + self.tied).max()) + 1 if self.above.numel() else 1

    def _expected(self, gains: Tensor) -> Tensor:
        """Mean gain of each positive: `gains` lists the gain of rank 1, 2, ...; it is 0 for later ranks."""
        total = torch.cat([gains.new_zeros(1), gains.cumsum(0)])
        first, last = self.above, self.above + self.tied + 1
        ends = [at.clamp(max=gains.numel()) for at in (first, last)]
        mean = (total[ends[1]] - total[ends[0]]) / (self.tied + 1)
        # A rank without ties gets exactly its gain, without the rounding error of a difference of sums.
        certain = (self.tied == 0) & (first < gains.numel())
        return torch.where(certain, gains[first.clamp(max=gains.numel() - 1)], mean)

    def _check_not_empty(self, metric: str) -> None:
        if self.above.numel() == 0:
            raise ValueError(f"{metric}: there are no positives to rank; give one or more")


def discounts(k: int) -> Tensor:
    """Return float64 (k): 1 / log2(place + 1) of the first k places."""
    return 1 / torch.log2(torch.arange(2, k + 2, dtype=torch.float64))


def check_scores(scores: Tensor, metric: str) -> None:
    """Raise ValueError, naming the first score, if a score is NaN or infinite."""
    wrong = ~scores.isfinite()
    if wrong.any():
        at = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"{metric}: the score at {at} is {float(scores[tuple(at)])}, which cannot be ranked; "
            f"{LOOK_FOR_NAN}"
        )


def check_k(k: int) -> None:
    """Raise ValueError unless k is at least 1."""
    if whole_number("k", k) < 1:
        raise ValueError(f"k {k}: must be at least 1")


Metric = Callable[[Tensor, Tensor], float]
Name = TypeVar("Name", bound=str)
NodeMetric = Literal["accuracy", "f1-macro", "f1-micro", "roc-auc", "average-precision"]


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Fraction of rows with their largest logit at the label; the lowest class wins a tie."""
    return float((logits.argmax(dim=1) == labels).double().mean())


def f1_micro(logits: Tensor, labels: Tensor) -> float:
    """Micro-averaged F1, which equals accuracy, because each row has one class."""
    return accuracy(logits, labels)


def f1_macro(logits: Tensor, labels: Tensor) -> float:
    """Mean F1 over the classes that occur as a label or as a prediction (the largest logit)."""
    classes = logits.shape[1]
    predicted = logits.argmax(dim=1)
    found = torch.bincount(labels[predicted == labels], minlength=classes)
    either = torch.bincount(predicted, minlength=classes) + torch.bincount(labels, minlength=classes)
    present = either > 0
    return float((2 * found[present].double() / either[present]).mean())


def roc_auc(logits: Tensor, labels: Tensor) -> float:
    """Exact area under the ROC curve: of class 1 for two classes, else the one-vs-rest mean."""
    present = torch.unique(labels)
    if present.numel() < 2:
        raise ValueError(
            f"roc-auc: all {labels.numel()} labels are {present.tolist()}, two classes are required"
        )
    scores = logits.double()
    if logits.shape[1] == 2:
        return binary_roc_auc(scores[:, 1] - scores[:, 0], labels)
    return _one_against_rest(binary_roc_auc, scores, labels)


def mean_average_precision(logits: Tensor, labels: Tensor) -> float:
    """Average precision: of class 1 for two classes, else the one-vs-rest mean."""
    scores = logits.double()
    if logits.shape[1] == 2:
        return average_precision(scores[:, 1] - scores[:, 0], labels)
    return _one_against_rest(average_precision, scores, labels)


def _one_against_rest(metric: Metric, logits: Tensor, labels: Tensor) -> float:
    """Average a metric of two classes over the classes that occur as a label, each against all others."""
    shares = torch.softmax(logits, dim=1)
    of_classes = [metric(shares[:, c], labels == c) for c in torch.unique(labels).tolist()]
    return sum(of_classes) / len(of_classes)


METRICS: Mapping[NodeMetric, Metric] = {
    "accuracy": accuracy,
    "f1-macro": f1_macro,
    "f1-micro": f1_micro,
    "roc-auc": roc_auc,
    "average-precision": mean_average_precision,
}

# By name, also for custom tasks. For all other metrics, higher is better.
LOWER_IS_BETTER = frozenset({"rmse", "mae"})


def is_better(metric: str, score: float, best: float | None) -> bool:
    """Return True if a score is better than the best one so far, which may be None."""
    if best is None:
        return True
    return score < best if metric in LOWER_IS_BETTER else score > best


def check_outputs(outputs: Tensor, nodes: Tensor, node_type: NodeType, metric: str) -> None:
    """Raise ValueError, naming the first node, if an output is NaN."""
    wrong = outputs.isnan().any(dim=1)
    if wrong.any():
        raise ValueError(
            f"{metric}: the model's output for node {int(nodes[wrong][0])} of {node_type!r} is NaN, and so "
            f"for {int(wrong.sum()):,} of {nodes.numel():,} nodes: the score is undefined; {LOOK_FOR_NAN}"
        )


def known_metric(name: str | None, known: Iterable[Name]) -> Name:
    """Return the metric of this name. Raises ValueError if it is not in `known`."""
    names = list(known)
    for each in names:
        if each == name:
            return each
    raise ValueError(f"metric {name!r}: must be one of {', '.join(names)}")


RegressionMetric = Literal["rmse", "mae", "r2"]


def rmse(outputs: Tensor, labels: Tensor) -> float:
    """Square root of the mean squared error, in the unit of the labels; lower is better."""
    return float((outputs.double() - labels.double()).square().nanmean().sqrt())


def mae(outputs: Tensor, labels: Tensor) -> float:
    """Mean absolute error, in the unit of the labels; lower is better."""
    return float((outputs.double() - labels.double()).abs().nanmean())


def r2(outputs: Tensor, labels: Tensor) -> float:
    """Coefficient of determination: 1 minus the error over that of the mean; averaged over columns."""
    labels = labels.double()
    residual = (outputs.double() - labels).square().nansum(0)
    total = (labels - labels.nanmean(0)).square().nansum(0)
    known = ~labels.isnan()
    if not bool(known.any(0).all()):
        raise ValueError("r2: a column of the labels has no known number, and two are required")
    least, most = (labels.where(known, bound) for bound in (math.inf, -math.inf))
    if bool((least.amin(0) >= most.amax(0)).any()):  # their mean may be rounded
        raise ValueError("r2: all labels of a column are equal, and two different values are required")
    return float((1 - residual / total).mean())


REGRESSION_METRICS: Mapping[RegressionMetric, Metric] = {"rmse": rmse, "mae": mae, "r2": r2}
