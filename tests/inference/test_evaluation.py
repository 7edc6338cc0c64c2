"""Splits are scored together and apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from khop.graph.features.table import FeatureTable
from khop.inference.evaluation import scores
from khop.training.tasks import NodeClassification
from support.small_graphs import one_type

LABELS = torch.tensor([0, 1, 1, 0, -1])
FEATURES = FeatureTable({"node": {"y": LABELS}})
TASK = NodeClassification("node", "y")


def test_each_split_has_its_score_from_one_pass() -> None:
    asked: list[Tensor] = []

    def outputs_of(nodes: Tensor) -> Tensor:
        asked.append(nodes)
        return torch.nn.functional.one_hot(torch.ones_like(nodes), 2).float()  # always says 1

    splits = {"train": torch.tensor([3, 1]), "val": torch.tensor([2]), "test": torch.tensor([0])}
    assert scores(TASK, FEATURES, splits, outputs_of) == {"train": 0.5, "val": 1.0, "test": 0.0}
    assert [nodes.tolist() for nodes in asked] == [[3, 1, 2, 0]]


def test_an_empty_split_is_named() -> None:
    with pytest.raises(ValueError, match="split 'val' of 'node': has no nodes to score; leave it out"):
        scores(TASK, FEATURES, {"train": torch.tensor([1]), "val": torch.tensor([]).long()}, torch.zeros_like)


def test_a_node_without_a_label_is_named() -> None:
    with pytest.raises(ValueError, match="node 4 of 'node' has y -1"):
        scores(TASK, FEATURES, {"val": torch.tensor([1, 4])}, lambda nodes: torch.zeros(len(nodes), 2))


def test_the_labels_of_a_graph_are_found() -> None:
    graph = one_type()
    labels = graph.features.columns["node"]["y"]
    perfect = scores(
        TASK, graph.features, {"all": torch.arange(60)}, lambda nodes: torch.eye(3)[labels[nodes]]
    )
    assert perfect == {"all": 1.0}
