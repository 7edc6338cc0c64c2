"""Tasks over edges: classification, regression and link prediction, with losses and metrics."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from khop.arguments import check_word, instance_of, shown
from khop.batch import Batch
from khop.components import LINK_LOSSES
from khop.kernels.choice import Engine, engine
from khop.models.link_predictor import LinkScores, joined
from khop.schema import EdgeType, edge_type_of
from khop.training.link_losses import LinkLoss
from khop.training.metrics import (
    LOOK_FOR_NAN,
    METRICS,
    REGRESSION_METRICS,
    NodeMetric,
    Places,
    RegressionMetric,
    average_precision,
    binary_roc_auc,
    check_scores,
    known_metric,
)
from khop.training.tasks import (
    CROSS_ENTROPY,
    UNSCALED,
    ClassLoss,
    Constant,
    LabelScale,
    RegressionLoss,
    Task,
    number_losses,
    number_rows,
)


@runtime_checkable
class EdgeObjective(Task, Protocol):
    """Loss and metrics of a task over edges of one type with a column of labels."""

    @property
    def edge_type(self) -> EdgeType:
        """The edge type of the links."""
        ...

    @property
    def label(self) -> str:
        """The edge column of labels."""
        ...

    @property
    def metrics(self) -> Sequence[str]:
        """Names that `score` takes."""
        ...

    def score(self, outputs: Tensor, labels: Tensor, edges: Tensor, metric: str | None = None) -> float:
        """Compute a metric, by default the task's; outputs and labels have a row per edge, `edges` (2, n)."""
        ...

    def constant(self, labels: Tensor, outputs: int) -> Constant | None:
        """Return the best constant prediction for the training labels, or None."""
        ...


@dataclass(frozen=True)
class EdgeClassification:
    """Task: predict one class per edge of one type.

    Labels come with the links (`khop.split_links(label=...)`). Edges with label -1 are unknown: their
    loss is 0, and scores leave them out.

    Args:
        edge_type: Edge type of the links, ("user", "rates", "item") or "user rates item".
        label: Integer column of the edge type, 0 <= label < classes; -1 means unknown.
        metric: Metric of scores, default "accuracy".
        loss: Cross-entropy (default) or focal loss.
    Raises:
        ValueError: There is no such metric.
    Example:
        >>> task = khop.EdgeClassification("user rates item", "stars")
        >>> outputs, labels = torch.tensor([[0.2, 0.8], [0.9, 0.1]]), torch.tensor([1, 1])
        >>> task.score(outputs, labels, edges=torch.tensor([[0, 1], [2, 3]]))
        0.5
    """

    edge_type: EdgeType
    label: str
    metric: NodeMetric = "accuracy"
    loss: ClassLoss = CROSS_ENTROPY

    def __post_init__(self) -> None:
        object.__setattr__(self, "edge_type", edge_type_of(self.edge_type))
        instance_of("loss", self.loss, ClassLoss, "must be a khop.ClassLoss, such as khop.ClassLoss('focal')")
        known_metric(self.metric, METRICS)

    @property
    def metrics(self) -> Sequence[str]:
        """Names that `score` takes."""
        return tuple(METRICS)

    def losses(self, output: Mapping[EdgeType, Tensor], batch: Batch) -> Tensor:
        """Return (links): the loss of each link, 0 if its label is -1.

        On a device, the loss of a link with a label out of range is NaN, because an error would need a
        synchronization.

        Args:
            output: Logits (links, classes) by edge type.
            batch: The batch, with labels of its links.
        Raises:
            ValueError: A label is out of range.
        """
        logits, labels = output[self.edge_type], link_labels(batch, self.edge_type, self.label)
        classes = logits.shape[1]
        losses = self.loss.of(logits, labels.long().clamp(0, classes - 1)).masked_fill(labels == -1, 0.0)
        if engine(logits.device) is not Engine.NATIVE:
            return losses.masked_fill((labels < -1) | (labels >= classes), torch.nan)
        self._check(labels, classes, batch_edges(batch, self.edge_type))
        return losses

    def score(self, outputs: Tensor, labels: Tensor, edges: Tensor, metric: str | None = None) -> float:
        """Compute a metric over the edges with known labels.

        Args:
            outputs: Logits (n, classes).
            labels: Labels, int (n).
            edges: Global ids, int64 (2, n), for errors.
            metric: Metric, by default the task's.
        Raises:
            ValueError: A label is out of range, an output is NaN, or no label is known.
        """
        name = known_metric(metric or self.metric, METRICS)
        check_edge_outputs(outputs, edges, self.edge_type, name)
        self._check(labels, outputs.shape[1], edges)
        known = labels >= 0
        if not known.any():
            raise ValueError(f"{name}: no edge of {self.edge_type} has a known {self.label}, one is required")
        return METRICS[name](outputs[known], labels[known].long())

    def constant(self, labels: Tensor, outputs: int) -> Constant | None:
        """Return the most frequent class of the labels; None if no label is known.

        Args:
            labels: Labels of training, int (n).
            outputs: Number of classes.
        """
        return Constant.majority(labels, outputs)

    def _check(self, labels: Tensor, classes: int, edges: Tensor) -> None:
        wrong = (labels < -1) | (labels >= classes)
        if wrong.any():
            first = int(wrong.nonzero()[0])
            source, destination = edges[:, first].tolist()
            raise ValueError(
                f"edge from {source} to {destination} of {self.edge_type} has {self.label} "
                f"{int(labels[first])}: must be 0 to {classes - 1}, or -1 for unknown; correct the label, or "
                "give the model more outputs"
            )


@dataclass(frozen=True)
class EdgeRegression:
    """Task: regression of a label of edges of one type.

    Labels come with the links (`khop.split_links(label=...)`). Outputs are in the unit of the label.
    Unknown numbers, NaN in `khop.Links(labels=...)`, are skipped, as in `NodeRegression`.

    Args:
        edge_type: Edge type of the links, ("user", "rates", "item") or "user rates item".
        label: Edge column of numbers, (edges) or (edges, numbers).
        loss: "mse" (default), squared error, or "mae", absolute error.
        metric: Metric of scores, default "rmse".
        scale: Scale of the labels: the loss divides errors by its deviation. Default: no scale.
    Raises:
        ValueError: There is no such loss or metric.
    Example:
        >>> task = khop.EdgeRegression("user rates item", "stars", loss="mae", metric="mae")
        >>> task.score(torch.tensor([[4.0]]), torch.tensor([3.0]), edges=torch.tensor([[0], [2]]))
        1.0
    """

    edge_type: EdgeType
    label: str
    loss: RegressionLoss = "mse"
    metric: RegressionMetric = "rmse"
    scale: LabelScale = UNSCALED

    def __post_init__(self) -> None:
        object.__setattr__(self, "edge_type", edge_type_of(self.edge_type))
        check_word("loss", self.loss, RegressionLoss)
        known_metric(self.metric, REGRESSION_METRICS)
        remedy = "must be a khop.LabelScale, as khop.LabelScale.of(labels)"
        instance_of("scale", self.scale, LabelScale, remedy)

    @property
    def metrics(self) -> Sequence[str]:
        """Names that `score` takes."""
        return tuple(REGRESSION_METRICS)

    def losses(self, output: Mapping[EdgeType, Tensor], batch: Batch) -> Tensor:
        """Return (links): the error of each link in units of the deviation, 0 if no number is known.

        Args:
            output: Outputs (links, numbers) by edge type.
            batch: The batch, with labels of its links.
        """
        labels = link_labels(batch, self.edge_type, self.label)
        return number_losses(output[self.edge_type], labels, self.loss, self.scale, self._column)

    def score(self, outputs: Tensor, labels: Tensor, edges: Tensor, metric: str | None = None) -> float:
        """Compute a metric over the edges with known labels.

        Args:
            outputs: Outputs (n, numbers).
            labels: Labels (n) or (n, numbers).
            edges: Global ids, int64 (2, n), for errors.
            metric: Metric, by default the task's.
        Raises:
            ValueError: An output is NaN, or no label is known.
        """
        name = known_metric(metric or self.metric, REGRESSION_METRICS)
        check_edge_outputs(outputs, edges, self.edge_type, name)
        rows = number_rows(labels, outputs, self._column).double()
        if bool(rows.isnan().all()):
            raise ValueError(f"{name}: no edge of {self.edge_type} has a known {self.label}, one is required")
        return REGRESSION_METRICS[name](outputs, rows)

    def constant(self, labels: Tensor, outputs: int) -> Constant | None:
        """Return the mean of each column of the labels; None if a column has no known number.

        Args:
            labels: Labels of training.
            outputs: Number of outputs of the model.
        """
        return Constant.mean(labels)

    @property
    def _column(self) -> str:
        return f"{self.label} of {self.edge_type}"


def link_labels(batch: Batch, edge_type: EdgeType, label: str) -> Tensor:
    """Return (links, ...): the labels of a batch's links; ValueError if links have no labels."""
    labels = batch.links[edge_type].labels
    if labels is None:
        raise ValueError(
            f"links of {edge_type} have no labels: give them the column, for example with "
            f"khop.split_links(graph, {' '.join(edge_type)!r}, label={label!r}), and no negatives in the "
            "LinkSampler"
        )
    return labels


def batch_edges(batch: Batch, edge_type: EdgeType) -> Tensor:
    """Return int64 (2, links): global ids of a batch's links, sources over destinations."""
    links = batch.links[edge_type]
    ends = ((edge_type[0], links.source), (edge_type[2], links.destination))
    nodes, index = batch.sample.nodes, batch.sample.seed_index
    return torch.stack([nodes[t][index[t][rows]] for t, rows in ends])


def check_edge_outputs(outputs: Tensor, edges: Tensor, edge_type: EdgeType, metric: str) -> None:
    """Raise ValueError, naming the first edge, if an output is NaN."""
    wrong = outputs.isnan().any(dim=1)
    if wrong.any():
        source, destination = edges[:, wrong][:, 0].tolist()
        raise ValueError(
            f"{metric}: the model's output for the edge from {source} to {destination} of {edge_type} is "
            f"NaN, and so for {int(wrong.sum()):,} of {outputs.shape[0]:,} edges: the score is undefined; "
            f"{LOOK_FOR_NAN}"
        )


LinkMetric = str  # "mrr", "roc-auc", "average-precision", "hits@10", "recall@10", "ndcg@10" or any other k
# Metrics over all pairs, which are positive or negative.
PAIR_METRICS: Mapping[str, Callable[[Tensor, Tensor], float]] = {
    "roc-auc": binary_roc_auc,
    "average-precision": average_precision,
}
# Metrics of the first k ranks. Each link is ranked among its negatives, so recall equals hits.
AT_K: Mapping[str, Callable[[Places, int], float]] = {
    "hits@K": Places.hits,
    "recall@K": Places.hits,
    "ndcg@K": Places.ndcg,
}
LINK_METRICS = ("mrr", *PAIR_METRICS, *AT_K)
LINK_METRIC_PATTERN = r"^(mrr|roc-auc|average-precision|(hits|recall|ndcg)@[1-9][0-9]{0,17})$"
_FULL_METRIC_PATTERN = r"^map@[1-9][0-9]{0,17}$"


FULL_AT, FILTERED_AT = (10, 20), (1, 3, 10)  # K of the metrics of links.ranking and links.filtered
FULL_RANKING = tuple(f"full-{name}@{k}" for k in FULL_AT for name in ("ndcg", "recall"))
FILTERED_RANKING = ("filtered-mrr", *(f"filtered-hits@{k}" for k in FILTERED_AT))


def is_full_metric(name: str) -> bool:
    """Return True for a metric that ranks all destinations of each source, not given negatives."""
    return re.fullmatch(_FULL_METRIC_PATTERN, name) is not None


def check_link_metric(name: str) -> str:
    """Return the name; ValueError unless it is a link metric."""
    if isinstance(name, str) and is_full_metric(name):
        raise ValueError(
            f"metric {name!r}: ranks all destinations, not given negatives; use khop.full_ranking, or "
            "task.metric of a run"
        )
    if not isinstance(name, str) or not re.fullmatch(LINK_METRIC_PATTERN, name):
        raise ValueError(
            f"metric {name!r}: must be one of {', '.join(LINK_METRICS)}, with a whole number K of at least "
            "1, such as hits@50"
        )
    return name


def check_task_metric(name: str) -> str:
    """Return the name; ValueError unless it is a metric of a link-prediction task."""
    return name if isinstance(name, str) and is_full_metric(name) else check_link_metric(name)


def is_pair_metric(name: LinkMetric) -> bool:
    """Return True for metrics that compare all links with all negatives."""
    return name in PAIR_METRICS or name.startswith("hits@")


def pair_metric(name: LinkMetric, scores: Tensor, labels: Tensor) -> float:
    """Compute a metric over all pairs, labeled 1 for a link and 0 for a negative.

    hits@K is the share of links above the K-th best negative, as in OGB's Evaluator; 1 for fewer negatives.
    """
    if name in PAIR_METRICS:
        return PAIR_METRICS[name](scores, labels)
    check_scores(scores, name)
    k, links, negatives = int(name.partition("@")[2]), scores[labels == 1], scores[labels == 0]
    if links.numel() == 0:
        raise ValueError(f"{name}: no pair has the label 1; give links and negatives")
    if negatives.numel() < k:
        return 1.0
    return float((links > negatives.topk(k).values[-1]).double().mean())


def link_metric(name: LinkMetric, links: Tensor, negatives: Tensor, given: Tensor | None = None) -> float:
    """Compute a metric, 0 to 1, from the scores of links (n) and of the negatives of each, (n, k).

    `given`, bool (n, k), is False for entries of `negatives` that pad a row. ValueError for an unknown
    metric, a link without a negative, and scores that are NaN or infinite.
    """
    kind, _, k = check_link_metric(name).partition("@")
    alone = (~(torch.ones_like(negatives, dtype=torch.bool) if given is None else given).any(1)).nonzero()
    if alone.numel():
        raise ValueError(f"{name}: link {int(alone[0])} has no negative; remove the link or add a negative")
    if kind in PAIR_METRICS:
        compared = negatives.flatten() if given is None else negatives[given]
        positive = torch.cat([torch.ones_like(links), torch.zeros_like(compared)])
        return PAIR_METRICS[kind](torch.cat([links, compared]), positive)
    places = Places.of(links, negatives, given)
    return AT_K[f"{kind}@K"](places, int(k)) if k else places.mean_reciprocal_rank()


@dataclass(frozen=True)
class LinkPrediction:
    """Task: distinguish the links of an edge type from pairs without a link.

    Args:
        loss: A `khop.LinkLoss`, or the kind of one: "bce" (default), the binary cross-entropy of each pair;
            "bpr", a ranking of links above negatives; "margin" or "infonce" with their default settings.
        metric: Metric of scores, default "mrr"; see `khop.evaluate_links`. In a run also "map@10".
    Raises:
        ValueError: There is no such loss or metric.
    Example:
        >>> task = khop.LinkPrediction(loss="bpr", metric="hits@1")
        >>> task.score(torch.tensor([0.9, 0.1]), negatives=torch.tensor([[0.5], [0.5]]))
        0.5
    """

    loss: LinkLoss | str = "bce"
    metric: LinkMetric = "mrr"

    def __post_init__(self) -> None:
        if not isinstance(self.loss, LinkLoss):
            kinds = LINK_LOSSES.builtin
            if not isinstance(self.loss, str) or self.loss not in kinds:
                raise ValueError(
                    f"loss {shown(self.loss)}: must be one of {', '.join(kinds)}, or a khop.LinkLoss"
                )
            object.__setattr__(self, "loss", LINK_LOSSES.load(self.loss).declared())
        check_task_metric(self.metric)

    def losses(self, output: Mapping[EdgeType, LinkScores], batch: Batch) -> Tensor:
        """Return (pairs): one loss per pair of all edge types, as input of `batch.global_mean`.

        Args:
            output: Scores of the pairs by edge type.
            batch: The batch.
        """
        assert isinstance(self.loss, LinkLoss)
        labels = [batch.links[t].labels for t in output]
        together = joined(output)
        given = [each for each in labels if each is not None]
        is_plain = len(given) in (0, len(labels)) and all(each.dim() == 1 for each in given)
        if together is not None and is_plain:
            # One operation for any number of edge types.
            scores = together.in_float32()
            return self.loss.of_scores(next(iter(output)), scores, torch.cat(given) if given else None)
        of_types = zip(output, labels, strict=True)
        return torch.cat([self.loss.of_scores(t, output[t].in_float32(), of) for t, of in of_types])

    def score(self, links: Tensor, negatives: Tensor) -> float:
        """Compute the metric of links, each compared with its negatives.

        Args:
            links: Scores of the links (n).
            negatives: Scores of their negatives (n, k).
        """
        return link_metric(self.metric, links, negatives)
