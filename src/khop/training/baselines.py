"""Baselines: scores of predictions that need no graph, to compare with the scores of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from khop.arguments import check_word, instance_of, whole_number

ConstantName = Literal["majority", "mean"]
POPULARITY, OWN_FEATURES, LABEL_PROPAGATION = "popularity", "own-features", "label-propagation"
BASELINES = (*get_args(ConstantName), POPULARITY, OWN_FEATURES, LABEL_PROPAGATION)


@dataclass(frozen=True, eq=False)
class Constant:
    """A prediction that is the same for every node."""

    name: ConstantName
    output: Tensor  # (outputs), as a model gives it for one node

    def __post_init__(self) -> None:
        check_word("name", self.name, ConstantName)
        instance_of("output", self.output, Tensor, "give a tensor (outputs)")

    @classmethod
    def majority(cls, labels: Tensor, classes: int) -> Constant | None:
        """Return the most frequent class of `labels`, int (n); the lowest class wins a tie.

        Labels outside 0 to `classes` - 1 are unknown and do not count. None if no label is known.
        """
        _check_labels(labels)
        known = labels[(labels >= 0) & (labels < whole_number("classes", classes, 1))].long()
        if known.numel() == 0:
            return None
        output = torch.zeros(classes)
        output[torch.bincount(known, minlength=classes).argmax()] = 1
        return cls("majority", output)

    @classmethod
    def majorities(cls, entries: Tensor) -> Constant | None:
        """Return the labels that more than half of the known entries have: 1 for them, -1 for the others.

        `entries` are int (n, labels): 1 has the label, 0 has it not, negative numbers are unknown. None if no
        entry is known.
        """
        _check_labels(entries)
        known = entries >= 0
        if not bool(known.any()):
            return None
        is_majority = 2 * (entries > 0).sum(0) > known.sum(0)
        return cls("majority", is_majority.float() * 2 - 1)

    @classmethod
    def mean(cls, labels: Tensor) -> Constant | None:
        """Return the mean of `labels`, float (n) or (n, outputs), without NaN. None if no label is known."""
        _check_labels(labels)
        rows = labels.double().flatten(1) if labels.dim() > 1 else labels.double().unsqueeze(1)
        known = rows[~rows.isnan().any(1)]
        return cls("mean", known.mean(0)) if known.numel() else None


@runtime_checkable
class HasConstant(Protocol):
    """An objective over nodes with a constant prediction as its baseline: `NodeClassification`, or yours."""

    def constant(self, labels: Tensor, outputs: int) -> Constant | None:
        """Return the best constant prediction for the labels of training; None if it has none.

        `outputs` is the number of values per node that the model gives.
        """
        ...


def constant_of(objective: object, labels: Tensor, outputs: int) -> Constant | None:
    """Return the constant prediction of an objective; None if it states none."""
    return objective.constant(labels, outputs) if isinstance(objective, HasConstant) else None


def _check_labels(labels: Tensor) -> None:
    instance_of("labels", labels, Tensor, "give a tensor with one row per node")
    if labels.dim() == 0:
        raise ValueError("labels: has no rows; give a tensor with one row per node")
