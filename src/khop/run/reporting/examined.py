"""Analysis of a test split: confusion of classes, ranks of links, and the worst predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from khop.graph.node_ids import LABEL, Names
from khop.inference.evaluation import SplitOutputs
from khop.inference.predictions import (
    LinkPredictions,
    NodePredictions,
    Predictions,
    of_kind,
    own_values,
    ranks_of,
)
from khop.schema import NodeType

_CLASSES = 30  # rows of a confusion matrix: the most frequent classes, and all others in one
_WORST = 10
_CURVE = (1, 2, 3, 5, 10, 20, 30, 50, 75, 100, 200, 500, 1000)


@dataclass(frozen=True)
class Confusion:
    """Counts of nodes by class (rows) and predicted class (columns)."""

    names: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class RankingCurve:
    """Share of links that rank among the first k, ordered by score with their negatives."""

    ks: tuple[int, ...]
    shares: tuple[float, ...]
    negatives: int  # per link


@dataclass(frozen=True)
class Scatter:
    """Labels and predictions of regression, for some nodes."""

    points: tuple[tuple[float, float], ...]  # label, prediction


@dataclass(frozen=True)
class Examined:
    """Summary of the predictions for a split."""

    picture: Confusion | RankingCurve | Scatter | None
    heading: tuple[str, ...]  # of the columns of the worst predictions
    worst: tuple[tuple[str, ...], ...]
    order: str  # of the worst predictions, in words


def examined(predictions: Predictions, names: Names, split: str) -> Examined | str:
    """Examine the predictions for a split; return a sentence if their kind is unknown."""
    match predictions:
        case NodePredictions():
            return _of_nodes(predictions, names, split)
        case LinkPredictions():
            return _of_links(predictions, names, split)
    return "A report does not show the predictions of a custom task."


def _of_nodes(predictions: NodePredictions, names: Names, split: str) -> Examined | str:
    stored = predictions.splits[split]
    labels, outputs = of_kind(stored.labels, predictions.kind), stored.outputs.float()
    record = names.labels.get(predictions.node_type, {}) if predictions.label == LABEL else {}
    ids = _Ids(names, predictions.node_type)
    if labels.is_floating_point() and labels.numel() == outputs.numel():
        return _of_numbers(stored, labels.reshape(-1), outputs.reshape(-1), ids)
    if labels.dim() == 1 and not labels.is_floating_point() and outputs.shape[1] > 1:
        return _of_classes(stored, labels.long(), outputs, record, ids)
    return "Predictions of several labels per node are not shown; khop evaluate --predictions writes them."


@dataclass(frozen=True)
class _Ids:
    """The users' ids of the nodes of a type, or else their original node numbers, or else their numbers."""

    names: Names
    node_type: NodeType

    def of(self, nodes: Tensor) -> list[str]:
        known = self.names.ids.get(self.node_type) or self.names.original_ids.get(self.node_type)
        numbers = nodes.tolist() if known is None else own_values(known, nodes)
        return [str(number) for number in numbers]


def _of_classes(
    stored: SplitOutputs, labels: Tensor, outputs: Tensor, record: Mapping[str, Any], ids: _Ids
) -> Examined:
    known = (labels >= 0).nonzero().flatten()
    labels, shares, nodes = labels[known], outputs[known].softmax(1), stored.nodes[known]
    of_label, predicted = shares.gather(1, labels.unsqueeze(1)).flatten(), shares.argmax(1)
    words = record.get("classes") or range(outputs.shape[1])
    worst = of_label.argsort(stable=True)[:_WORST]
    rows = zip(ids.of(nodes[worst]), labels[worst].tolist(), predicted[worst].tolist(), strict=True)
    sure = zip(shares[worst].max(1).values.tolist(), of_label[worst].tolist(), strict=True)
    return Examined(
        _confusion(labels, predicted, [str(word) for word in words]),
        ("id", "label", "prediction", "probability of it", "of the label"),
        tuple(
            (name, str(words[label]), str(words[found]), f"{high:.3f}", f"{low:.2g}")
            for (name, label, found), (high, low) in zip(rows, sure, strict=True)
        ),
        "The label has the lowest probability.",
    )


def _confusion(labels: Tensor, predicted: Tensor, words: Sequence[str]) -> Confusion:
    used = torch.bincount(labels, minlength=len(words)) + torch.bincount(predicted, minlength=len(words))
    order = used.argsort(descending=True, stable=True)
    order = order[used[order] > 0]
    first, others = order[:_CLASSES].sort().values, order[_CLASSES:]
    names = [words[number] for number in first.tolist()]
    row = torch.full((len(words),), len(names))  # of a class in the table; the last one is that of others
    row[first] = torch.arange(len(names))
    if others.numel():
        names.append(f"{others.numel()} others")
    size = len(names)
    table = torch.bincount(row[labels] * size + row[predicted], minlength=size * size).reshape(size, size)
    return Confusion(tuple(names), tuple(tuple(row) for row in table.tolist()))


def _of_numbers(stored: SplitOutputs, labels: Tensor, outputs: Tensor, ids: _Ids) -> Examined | str:
    if labels.numel() != stored.nodes.numel():
        return (
            "Predictions of several numbers per node are not shown; khop evaluate --predictions writes them."
        )
    known = (~labels.isnan()).nonzero().flatten()
    labels, outputs, nodes = labels[known].double(), outputs[known].double(), stored.nodes[known]
    worst = (labels - outputs).abs().argsort(descending=True, stable=True)[:_WORST]
    some = torch.linspace(0, len(labels) - 1, min(400, len(labels))).long().unique()
    rows = zip(ids.of(nodes[worst]), labels[worst].tolist(), outputs[worst].tolist(), strict=True)
    return Examined(
        Scatter(tuple(zip(labels[some].tolist(), outputs[some].tolist(), strict=True))),
        ("id", "label", "prediction", "difference"),
        tuple((name, f"{a:.5g}", f"{b:.5g}", f"{b - a:+.3g}") for name, a, b in rows),
        "The prediction differs most from the label.",
    )


def _of_links(predictions: LinkPredictions, names: Names, split: str) -> Examined:
    scored = predictions.splits[split][1]
    ranked = [ranks_of(*scored[edge_type]) for edge_type in predictions.edge_types]
    ranks, scores = torch.cat(ranked), torch.cat([scored[t][0] for t in predictions.edge_types])
    count = scored[predictions.edge_types[0]][1].shape[1]
    ks = tuple(k for k in _CURVE if k <= count + 1)
    shares = tuple(float((ranks <= k).double().mean()) for k in ks)
    worst = ranks.argsort(descending=True, stable=True)[:_WORST]
    ends = _ends_of(predictions, split, names, worst, [of_type.numel() for of_type in ranked])
    rows = zip(ends, scores[worst].tolist(), ranks[worst].tolist(), strict=True)
    return Examined(
        RankingCurve(ks, shares, count),
        (*_end_names(predictions), "score", "rank"),
        tuple((*of_link, f"{score:.4g}", f"{rank:g} of {count + 1}") for of_link, score, rank in rows),
        "The link ranks below most of its negatives.",
    )


def _end_names(predictions: LinkPredictions) -> tuple[str, ...]:
    if len(predictions.edge_types) > 1:
        return "edge type", "source", "destination"
    source, _, destination = predictions.edge_types[0]
    return source, f"{destination} " if source == destination else destination


def _ends_of(
    predictions: LinkPredictions, split: str, names: Names, places: Tensor, counts: Sequence[int]
) -> list[tuple[str, ...]]:
    """Return the ids of both ends of links, numbered over all edge types; with several, the type first."""
    links, first, found = predictions.splits[split][0], 0, dict[int, tuple[str, ...]]()
    for edge_type, count in zip(predictions.edge_types, counts, strict=True):
        here = places[(places >= first) & (places < first + count)]
        sources, destinations = links.rows(edge_type, here - first).edges
        words = (" ".join(edge_type),) if len(counts) > 1 else ()
        ids = zip(
            _Ids(names, edge_type[0]).of(sources), _Ids(names, edge_type[2]).of(destinations), strict=True
        )
        found |= {place: (*words, *of_link) for place, of_link in zip(here.tolist(), ids, strict=True)}
        first += count
    return [found[place] for place in places.tolist()]
