"""Predictions for the splits of a run, as columns with the users' ids, class names and units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from khop.graph.names import LABEL, Names
from khop.inference.edge_outputs import ends_of_links
from khop.inference.evaluation import EdgeOutputs, SplitOutputs
from khop.inference.link_evaluation import Scores
from khop.inference.parquet_file import id_columns, parquet
from khop.sampling.link_seeds import LinkList, Links
from khop.schema import EdgeType, NodeType
from khop.training.multi_label_metrics import UNKNOWN, entries_of
from khop.training.ranking import Places

LabelKind = Literal["by dtype", "numbers", "sets"]  # "by dtype": classes, sets of classes or numbers
_ROWS = 1 << 16  # of a row group
Columns = dict[str, Any]  # name -> pyarrow array


class Predictions(Protocol):
    """Predictions for one or several splits. Implementers are frozen values."""

    def pieces(self, names: Names) -> Iterator[Columns]:
        """Yield the columns of consecutive rows, with equal names and types."""
        ...

    def here(self) -> Predictions:
        """Return the same predictions, with all their rows in this process.

        Collective where ranks hold links in parts.
        """
        ...


@dataclass(frozen=True, eq=False)
class NodePredictions:
    """Outputs for nodes of one type: a row per node, split by split."""

    node_type: NodeType
    label: str  # the column of labels
    splits: Mapping[str, SplitOutputs]
    kind: LabelKind = "by dtype"

    def here(self) -> Predictions:
        """Return these predictions: every rank has them."""
        return self

    def pieces(self, names: Names) -> Iterator[Columns]:
        """Yield `id`, `node`, `original_id`, `split`, then labels and predictions (see `predicted`)."""
        record = names.labels.get(self.node_type, {}) if self.label == LABEL else {}
        original_ids = names.original_ids.get(self.node_type)
        for split, stored in self.splits.items():
            of_split = replace(stored, labels=of_kind(stored.labels, self.kind))
            for at in torch.arange(of_split.nodes.numel()).split(_ROWS):
                nodes = of_split.nodes[at]
                columns = id_columns(names.ids.get(self.node_type), nodes, "id", "node")
                if original_ids is not None:
                    columns["original_id"] = parquet().array(original_ids.at(nodes))
                columns["split"] = parquet().array([split] * at.numel())
                yield columns | labels_of(of_split.labels[at], record) | predicted(of_split, at, record)


@dataclass(frozen=True, eq=False)
class LinkPredictions:
    """Scores of links and of the negatives of each: a row per link, split by split, type by type."""

    edge_types: tuple[EdgeType, ...]
    splits: Mapping[str, tuple[LinkList, Scores]]  # links, and by type (n) scores, (n, k) of their negatives

    def here(self) -> Predictions:
        """Fetch the ends of all links, 16 bytes a link. Collective where ranks hold them in parts."""
        fetched = {
            split: (Links({t: ends_of_links(links, t) for t in self.edge_types}), scored)
            for split, (links, scored) in self.splits.items()
        }
        return replace(self, splits=fetched)

    def pieces(self, names: Names) -> Iterator[Columns]:
        """Yield ids and nodes of both ends, `split`, `score`, and `rank` among the link's negatives.

        Of several edge types, first `edge_type`, as "user buys item".
        """
        for split, (links, scored) in self.splits.items():
            for edge_type in self.edge_types:
                yield from self._of_type(names, split, edge_type, links, scored[edge_type])

    def _of_type(
        self, names: Names, split: str, edge_type: EdgeType, links: LinkList, scored: tuple[Tensor, Tensor]
    ) -> Iterator[Columns]:
        pyarrow, (source, _, destination), (scores, negatives) = parquet(), edge_type, scored
        ranks = ranks_of(scores, negatives)
        for at in torch.arange(scores.numel()).split(_ROWS):
            sources, destinations = links.rows(edge_type, at).edges
            words = {"edge_type": pyarrow.array([" ".join(edge_type)] * at.numel())}
            yield {
                **(words if len(self.edge_types) > 1 else {}),
                **id_columns(names.ids.get(source), sources, "source_id", "source"),
                **id_columns(names.ids.get(destination), destinations, "destination_id", "destination"),
                "split": pyarrow.array([split] * at.numel()),
                "score": pyarrow.array(scores[at].float().numpy()),
                "rank": pyarrow.array(ranks[at].double().numpy()),
            }


def ranks_of(scores: Tensor, negatives: Tensor) -> Tensor:
    """Return the rank of each link (n) among its negatives (n, k), from 1; ties count half."""
    places = Places.of(scores, negatives)
    return 1 + places.above + places.tied / 2


@dataclass(frozen=True, eq=False)
class EdgePredictions:
    """Outputs for edges of one type: a row per edge, split by split."""

    edge_type: EdgeType
    splits: Mapping[str, EdgeOutputs]
    kind: LabelKind = "by dtype"

    def here(self) -> Predictions:
        """Return these predictions: every rank has them."""
        return self

    def pieces(self, names: Names) -> Iterator[Columns]:
        """Yield ids and nodes of both ends, `split`, then labels and predictions (see `predicted`)."""
        source, _, destination = self.edge_type
        for split, stored in self.splits.items():
            of_split = SplitOutputs(stored.edges.T, of_kind(stored.labels, self.kind), stored.outputs)
            for at in torch.arange(of_split.labels.shape[0]).split(_ROWS):
                sources, destinations = stored.edges[:, at]
                yield {
                    **id_columns(names.ids.get(source), sources, "source_id", "source"),
                    **id_columns(names.ids.get(destination), destinations, "destination_id", "destination"),
                    "split": parquet().array([split] * at.numel()),
                    **labels_of(of_split.labels[at], {}),
                    **predicted(of_split, at, {}),
                }


def of_kind(labels: Tensor, kind: LabelKind) -> Tensor:
    """Return labels in the dtype of their kind: numbers are floats, and sets int8 with -1 for unknown."""
    if kind == "numbers":
        return labels if labels.is_floating_point() else labels.double()
    return (
        entries_of(labels)
        if kind == "sets" or (labels.dim() > 1 and not labels.is_floating_point())
        else labels
    )


def labels_of(labels: Tensor, record: Mapping[str, Any]) -> Columns:
    """Return the column `label`: class names, lists of them, or numbers; null where it is unknown.

    A set of classes is unknown if one of its entries is.
    """
    if labels.is_floating_point():
        return {"label": _numbers(labels)}
    if labels.dim() > 1:
        return {"label": _lists(labels == 1, record, (labels == UNKNOWN).any(1).tolist())}
    return {"label": _named(labels, record, (labels < 0).numpy())}


def predicted(split: SplitOutputs, at: Tensor, record: Mapping[str, Any]) -> Columns:
    """Return the columns of some outputs, by the kind of their labels (see `of_kind`).

    Classes: `prediction`, its `score` (a probability), and `scores` of all classes. Several classes per node:
    the same, with lists. Numbers: `prediction`, and `unit` if the import has recorded one. Otherwise
    `output`, as the model gives it.
    """
    pyarrow, outputs, labels = parquet(), split.outputs[at].float(), split.labels[at]
    if labels.dim() == 1 and not labels.is_floating_point() and outputs.shape[1] > 1:
        shares = outputs.softmax(1)
        score, best = shares.max(1)
        return {
            "prediction": _named(best, record),
            "score": pyarrow.array(score.numpy()),
            "scores": _rows(shares),
        }
    if labels.is_floating_point() and outputs.numel() == labels.numel():
        unit = {"unit": pyarrow.array([record["unit"]] * at.numel())} if record.get("unit") else {}
        return {"prediction": _numbers(split.outputs[at].reshape(labels.shape)), **unit}
    if labels.shape == outputs.shape:
        return {"prediction": _lists(outputs > 0, record), "scores": _rows(outputs.sigmoid())}
    return {"output": _rows(outputs)}


def _numbers(values: Tensor) -> Any:  # noqa: ANN401
    """Return float64 numbers, null for NaN; rows of several numbers are lists."""
    wide = values.double()
    return parquet().array(wide.numpy(), from_pandas=True) if wide.dim() == 1 else _rows(wide)


def _named(numbers: Tensor, record: Mapping[str, Any], unknown: Any = None) -> Any:  # noqa: ANN401
    pyarrow, classes = parquet(), record.get("classes")
    at = pyarrow.array(numbers.long().numpy(), mask=unknown)
    return pyarrow.array(classes, pyarrow.string()).take(at) if classes else at


def _lists(chosen: Tensor, record: Mapping[str, Any], unknown: list[bool] | None = None) -> Any:  # noqa: ANN401
    pyarrow, classes = parquet(), record.get("classes") or list(range(chosen.shape[1]))
    rows = [
        None if unknown is not None and unknown[at] else [classes[n] for n in row.nonzero().flatten()]
        for at, row in enumerate(chosen)
    ]
    return pyarrow.array(rows, pyarrow.list_(pyarrow.array(classes).type))


def _rows(values: Tensor) -> Any:  # noqa: ANN401
    flat = parquet().array(values.reshape(-1).numpy())
    return parquet().FixedSizeListArray.from_arrays(flat, values.shape[1])
