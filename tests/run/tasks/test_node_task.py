"""Node classification follows the edge types that its model has learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import khop
from khop.api.open_graph import Graph
from khop.draw import DrawKey, FrontierByType, NeighborsByType
from khop.graph.node_ids import Names
from khop.graph.rule import Hop
from khop.graph.rule_arrays import EdgeDraws
from khop.inference.chunks import unwatched
from khop.run.tasks.node_task import NodeTask
from khop.training.tasks import LabelScale, NodeRegression
from support.small_labeled import write_labeled_graph
from support.typed_runs import BOUGHT_BY, BUYS, ON, prepared, write_tagged_shop


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tagged_shop(tmp_path_factory.mktemp("graphs") / "shop")


def test_an_edge_type_that_no_hop_follows_is_unknown_to_the_model_and_to_exact_evaluation(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hop = {"user buys item": 4, "item bought_by user": 2, "*": 0}
    run = prepared(shop, sampler={"fanouts": [hop, hop]}, model={"hidden": 8})
    assert run.model.sizes.edge_types == (BUYS, BOUGHT_BY)
    drawn: dict[tuple[str, str, str], int] = {}
    sample_hop = EdgeDraws.sample_hop

    def noting(graph: EdgeDraws, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        found = sample_hop(graph, frontier, hop, key)
        for edge_type, neighbors in found.items():
            drawn[edge_type] = drawn.get(edge_type, 0) + neighbors.nodes.numel()
        return found

    monkeypatch.setattr(EdgeDraws, "sample_hop", noting)
    run.scores(("val",), unwatched)
    assert drawn[BUYS] > 0
    assert drawn[BOUGHT_BY] > 0
    assert drawn[ON] == 0


def test_the_majority_is_measured_beside_every_score(shop: Path) -> None:
    run_task = prepared(shop, model={"hidden": 8, "embedding": 4}).run_task
    assert isinstance(run_task, NodeTask)
    found = run_task.evaluated(("val", "test"), unwatched, ("f1-macro",))
    # Items 0 to 39 train, of the kinds 0 to 3 in turn: kind 0 wins the tie. It is the kind of 3 of 50 to 59.
    assert found.baselines == pytest.approx({
        "val/majority/accuracy": 3 / 10, "val/majority/f1-macro": 2 * 3 / (10 + 3) / 4,
        "test/majority/accuracy": 2 / 10, "test/majority/f1-macro": 2 * 2 / (10 + 2) / 4,
    })  # fmt: skip
    assert found.scores.keys() == {"val", "val/f1-macro", "test", "test/f1-macro"}


def with_splits(run_task: NodeTask, **splits: torch.Tensor) -> NodeTask:
    """The task on the same graph in memory, with other splits."""
    graph = run_task.context.graph
    changed = Graph(
        graph.topology, graph.features, splits={name: {"item": of} for name, of in splits.items()}
    )
    return replace(run_task, context=replace(run_task.context, graph=changed))


def test_a_training_split_without_known_labels_has_no_majority_and_scores_are_as_ever(shop: Path) -> None:
    run_task, nodes = prepared(shop, model={"hidden": 8, "embedding": 4}).run_task, torch.arange(60)
    assert isinstance(run_task, NodeTask)
    found = with_splits(run_task, train=nodes[:0], val=nodes[40:]).evaluated(("val",), unwatched)
    assert (found.scores.keys(), found.baselines) == ({"val"}, {})


def test_an_empty_split_fails_where_it_is_scored(shop: Path) -> None:
    run_task, nodes = prepared(shop, model={"hidden": 8, "embedding": 4}).run_task, torch.arange(60)
    assert isinstance(run_task, NodeTask)
    changed = with_splits(run_task, train=nodes[:6], val=nodes[6:], test=nodes[:0])
    assert len(changed.loader()) == 1  # nothing is measured before the first epoch
    assert changed.evaluated(("val",), unwatched).baselines.keys() == {"val/majority/accuracy"}
    with pytest.raises(ValueError, match="split 'test' of 'item' has no nodes to score"):
        changed.evaluated(("val", "test"), unwatched)


@pytest.fixture(scope="module")
def labeled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_labeled_graph(tmp_path_factory.mktemp("graphs") / "labeled")


def run_of(labeled: Path, **task: object) -> NodeTask:
    run = prepared(labeled, task=task, sampler={"fanouts": [3, 2]}, model={"hidden": 8})
    assert isinstance(run.run_task, NodeTask)
    return run.run_task


def test_outputs_of_regression_are_in_the_unit_of_the_label_from_the_start(labeled: Path) -> None:
    task = run_of(labeled, kind="node-regression", label="price")
    graph = khop.open_graph(labeled)
    prices = graph.columns["item"]["price"][graph.split("train")["item"]]
    objective = task.task
    assert isinstance(objective, NodeRegression)
    assert objective.scale == LabelScale.of(prices)
    evaluated = task.evaluated(("val",), unwatched, ("r2",))
    mean = prices.double().mean()
    held_out = graph.columns["item"]["price"][graph.split("val")["item"]].double()
    assert evaluated.baselines["val/mean/rmse"] == pytest.approx(
        float((held_out - mean).square().mean().sqrt())
    )
    assert evaluated.baselines["val/mean/r2"] < 0.01
    assert 600 < evaluated.scores["val"] < 2000  # near the deviation, not the mean of 5,000
    plain = run_of(labeled, kind="node-regression", label="price", standardize="none")
    assert plain.scores(("val",), unwatched)["val"] > 4000


def test_the_labels_of_most_training_nodes_are_measured_beside_every_score(labeled: Path) -> None:
    task, graph = run_of(labeled, kind="multi-label", label="tags"), khop.open_graph(labeled)
    found = task.evaluated(("val",), unwatched, ("f1-macro",)).baselines
    tags = graph.columns["item"]["tags"]
    train, held_out = (tags[graph.split(split)["item"]] for split in ("train", "val"))
    known = (train == 0) | (train == 1)
    has = 2 * (train == 1).sum(0) > known.sum(0)
    predicted = has & ((held_out == 0) | (held_out == 1))
    right = int((predicted & (held_out == 1)).sum())
    either = int(predicted.sum()) + int((held_out == 1).sum())
    assert found.keys() == {"val/majority/f1-micro", "val/majority/f1-macro"}
    assert found["val/majority/f1-micro"] == pytest.approx(2 * right / either)


def test_predictions_are_of_the_kind_of_the_task(labeled: Path) -> None:
    sizes = run_of(labeled, kind="node-regression", label="size").evaluated(("val",), unwatched).predictions
    (piece,) = sizes.pieces(Names())
    assert len(piece["prediction"][0].as_py()) == 2
    tags = run_of(labeled, kind="multi-label", label="tags").evaluated(("val",), unwatched).predictions
    (piece,) = tags.pieces(Names())
    assert set(piece["prediction"][0].as_py()) <= {0, 1, 2}
    stored = khop.open_graph(labeled).columns["item"]["tags"][torch.tensor(piece["node"].to_pylist())]
    assert [row is None for row in piece["label"].to_pylist()] == (stored == 255).any(1).tolist()


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        ({"kind": "node-regression", "label": "kind"}, "task.label is 'kind': the label columns of item are"),
        ({"kind": "multi-label", "label": "price"}, "task.label is 'price': the label columns of item are"),
        (
            {"kind": "node-regression", "metric": "accuracy"},
            "task.metric is 'accuracy': must be one of rmse, mae",
        ),
        ({"kind": "multi-label", "loss": "mse"}, "task.loss: no such field"),
    ],
)
def test_a_label_or_setting_that_does_not_fit_is_named(
    labeled: Path, task: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        run_of(labeled, **task)


def test_the_only_column_that_fits_is_the_label(labeled: Path) -> None:
    assert run_of(labeled, kind="node-regression").task.label == "price"
    assert run_of(labeled, kind="multi-label").task.label == "tags"


def test_a_split_without_a_known_label_is_named_before_training(tmp_path: Path) -> None:
    items = torch.arange(6)
    nodes = khop.NodeTable(
        columns={"x": torch.ones(6, 1), "tags": torch.full((6, 2), 255, dtype=torch.uint8)},
        splits={"train": items[:2], "val": items[2:4], "test": items[4:]},
    )
    khop.write_graph(tmp_path / "g", {"item": nodes}, {("item", "to", "item"): khop.EdgeTable(items, items)})
    with pytest.raises(
        ValueError, match=r"task\.train_split is 'train': no node of item in it has a known tags"
    ):
        run_of(tmp_path / "g", kind="multi-label")
