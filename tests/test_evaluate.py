"""One call scores a model on a split: exactly where it exposes its layers, on samples in any case."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from khop import (
    Batch,
    EdgeTable,
    Graph,
    NodeClassification,
    NodeTable,
    evaluate,
    layerwise_inference,
    open_graph,
    write_graph,
)
from khop.models import SAGE


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    generator = torch.Generator().manual_seed(2)
    users = NodeTable(20, splits={"train": torch.arange(5)})
    items = NodeTable(
        columns={"x": torch.randn(30, 4, generator=generator), "y": torch.arange(30) % 3},
        splits={"train": torch.arange(10), "val": torch.arange(10, 30)},
        num_classes={"y": 3},
    )
    ends = torch.randint(20, (90,), generator=generator), torch.randint(30, (90,), generator=generator)
    edges = {("user", "buys", "item"): EdgeTable(*ends), ("item", "of", "user"): EdgeTable(ends[1], ends[0])}
    path: Path = tmp_path_factory.mktemp("graphs") / "shop"
    return open_graph(write_graph(path, {"user": users, "item": items}, edges))


def test_the_exact_score_is_that_of_exact_inference(graph: Graph) -> None:
    model = SAGE.for_graph(graph, hidden=8, dropout=0.5, embedding=0)
    seen: list[tuple[int, int]] = []
    score = evaluate(model, graph, split="val", progress=lambda *at: seen.append(at))
    outputs = layerwise_inference(model, graph, graph.features, "item")
    expected = (outputs.argmax(dim=1) == torch.arange(30) % 3)[10:].double().mean()
    assert score == pytest.approx(float(expected))
    assert seen[-1] == (20 + 30 + 20, 20 + 30 + 20)


def test_samples_of_all_neighbours_give_the_exact_score_and_others_repeat(graph: Graph) -> None:
    model = SAGE.for_graph(graph, hidden=8, embedding=0)
    exact = evaluate(model, graph, split="val")
    assert evaluate(model, graph, split="val", fanouts=[-1, -1]) == exact
    sampled = [evaluate(model, graph, split="val", fanouts=[1, 1]) for _ in range(2)]
    assert sampled[0] == sampled[1]


class Plain(nn.Module):
    """Knows the label: it stands in the input."""

    def forward(self, batch: Batch) -> Tensor:
        return nn.functional.one_hot(batch["item", "y"], 3).float()[batch.sample.seed_index["item"]]


def test_a_module_without_layers_is_sampled_or_told_how(graph: Graph) -> None:
    assert evaluate(Plain(), graph, split="val", fanouts=[2], columns=["y"]) == 1.0
    with pytest.raises(ValueError, match=r"Plain does not expose its layers.*fanouts=\[\.\.\.\]"):
        evaluate(Plain(), graph, split="val")


def test_another_task_can_be_named(graph: Graph) -> None:
    auc = evaluate(
        SAGE.for_graph(graph, embedding=0),
        graph,
        split="val",
        task=NodeClassification("item", "y", "roc-auc"),
    )
    assert 0.0 < auc < 1.0


def test_what_cannot_be_scored_is_named(graph: Graph) -> None:
    model = SAGE.for_graph(graph, embedding=0)
    with pytest.raises(ValueError, match="no split 'tests'"):
        evaluate(model, graph, split="tests")
    with pytest.raises(ValueError, match=r"split 'val': has nodes of \['item'\], the task is about 'user'"):
        evaluate(model, graph, split="val", task=NodeClassification("user", "y"))
