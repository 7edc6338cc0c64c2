"""Constant predictions are the best ones that use no input."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.training.baselines import Constant, constant_of
from khop.training.tasks import NodeClassification, WithMetric


@given(st.lists(st.integers(-1, 5), max_size=30))
def test_the_majority_is_the_most_frequent_known_class_and_the_lowest_of_several(labels: list[int]) -> None:
    counts = Counter(label for label in labels if 0 <= label < 4)
    found = Constant.majority(torch.tensor(labels, dtype=torch.int64), 4)
    if not counts:
        assert found is None
        return
    assert found is not None
    assert int(found.output.argmax()) == min(counts, key=lambda label: (-counts[label], label))


def test_no_constant_class_is_more_often_right() -> None:
    labels, task = torch.tensor([2, 0, 2, 1, 2, 0]), NodeClassification("node", "y")
    constant = Constant.majority(labels, 3)
    assert constant is not None
    nodes = torch.arange(6)
    scores = [task.score(torch.eye(3)[number].expand(6, -1), labels, nodes) for number in (0, 1, 2)]
    assert task.score(constant.output.expand(6, -1), labels, nodes) == max(scores) == 0.5


def test_the_mean_leaves_unknown_labels_out() -> None:
    found = Constant.mean(torch.tensor([1.0, float("nan"), 4.0]))
    assert found is not None
    assert (found.name, found.output.tolist()) == ("mean", [2.5])
    wide = Constant.mean(torch.tensor([[1.0, 3.0], [3.0, 5.0]]))
    assert wide is not None
    assert wide.output.tolist() == [2, 4]
    assert Constant.mean(torch.tensor([float("nan")])) is None
    assert Constant.mean(torch.empty(0)) is None


def test_an_objective_with_another_metric_keeps_its_constant() -> None:
    task, labels = NodeClassification("node", "y"), torch.tensor([1, 1, 0])
    for objective in (task, WithMetric(task, "f1-macro")):
        constant = constant_of(objective, labels, 2)
        assert constant is not None
        assert constant.output.tolist() == [0, 1]


def test_an_objective_without_a_constant_has_none() -> None:
    class Plain:
        node_type, label, metric, metrics = "node", "y", "error", ("error",)

    assert constant_of(Plain(), torch.tensor([1]), 2) is None
    assert constant_of(WithMetric(Plain(), "error"), torch.tensor([1]), 2) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["popularity", 5])
def test_other_names_are_refused(name: object) -> None:
    with pytest.raises(ValueError, match="must be one of majority, mean"):
        Constant(name, torch.ones(1))  # type: ignore[arg-type]
