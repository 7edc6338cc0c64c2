"""Runs over labels of edges: split without leaks, measured exactly, with predictions and baselines.

The split edges of a run: held-out edges and their reverses carry no message, and equal runs are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from khop.graph.node_ids import Names
from khop.inference.chunks import InferenceWork, unwatched
from khop.inference.link_evaluation import exact_edge_outputs
from khop.inference.node_outputs import ALL_NEIGHBORS
from khop.run.build import Run, prepare
from khop.run.read import RawRun, with_options
from khop.run.tasks.edge_run_task import EdgeTask, SplitEdges
from khop.training.tasks import LabelScale
from support.small_labeled import LIKE, write_labeled_graph

Prepare = Callable[..., Run]


@pytest.fixture(scope="module")
def labeled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_labeled_graph(tmp_path_factory.mktemp("graphs") / "labeled")


@pytest.fixture
def prepared(labeled: Path) -> Prepare:
    def call(**options: object) -> Run:
        values = {
            "graph": str(labeled),
            "task": {"kind": "edge-classification", "label": "stars"},
            "sampler": {"fanouts": [4, 3]},
            "model": {"hidden": 8},
            "training": {"batch_size": 256},
        }
        named = {name.replace("__", "."): value for name, value in options.items()}
        return prepare(with_options(RawRun(values, "run.toml"), named), labeled.parent)

    return call


REGRESSION = {"task__kind": "edge-regression", "task__label": "weight"}


def task_of(run: Run) -> EdgeTask:
    assert isinstance(run.run_task, EdgeTask)
    return run.run_task


def test_classes_are_counted_and_a_batch_has_the_labels_of_its_links(prepared: Prepare) -> None:
    run = prepared()
    task, batch = task_of(run), next(iter(run.loader().epoch(0)))
    assert run.model(batch)[LIKE].shape == (256, 3)
    links, edges = batch.links[LIKE], task.parts.split.train_links.edges[LIKE]
    assert links.labels is not None
    labels = set(zip(*edges.tolist(), _training_labels(task).tolist(), strict=True))
    ends = [batch.seed_nodes["item"][rows].tolist() for rows in (links.source, links.destination)]
    assert set(zip(*ends, links.labels.tolist(), strict=True)) <= labels


def _training_labels(task: EdgeTask) -> torch.Tensor:
    links = task.parts.split.train_links
    labels = links.rows(LIKE, torch.arange(links.counts[LIKE])).labels
    assert labels is not None
    return labels


def test_scores_are_those_of_exact_outputs_on_held_out_edges(prepared: Prepare) -> None:
    task = task_of(prepared())
    found = task.evaluated(("val", "test"), unwatched, ("f1-macro",))
    links, graph = task.parts.split.test_links, task.parts.split.test
    outputs = exact_edge_outputs(task.model, graph, graph.features, links, InferenceWork(50), ALL_NEIGHBORS)[
        LIKE
    ]
    labels = links.rows(LIKE, torch.arange(links.counts[LIKE])).labels
    assert labels is not None
    known = labels >= 0
    assert found.scores["test"] == float((outputs.argmax(1) == labels)[known].double().mean())
    assert list(found.scores) == ["val", "val/f1-macro", "test", "test/f1-macro"]
    training = _training_labels(task)
    largest = int(training[training >= 0].bincount().argmax())
    expected = float((labels[known] == largest).double().mean())
    assert found.baselines["test/majority/accuracy"] == expected


def test_predictions_have_both_ends_labels_and_probabilities(prepared: Prepare) -> None:
    task = task_of(prepared())
    evaluation = task.evaluated(("val", "test"), unwatched)
    pieces = list(evaluation.predictions.pieces(Names()))
    split = task.parts.split
    for columns, name, links in zip(
        pieces, ("val", "test"), (split.val_links, split.test_links), strict=True
    ):
        edges = links.edges[LIKE]
        labels = links.rows(LIKE, torch.arange(edges.shape[1])).labels
        assert labels is not None
        assert columns["source"].to_pylist() == edges[0].tolist()
        assert columns["destination"].to_pylist() == edges[1].tolist()
        assert columns["split"].to_pylist() == [name] * edges.shape[1]
        assert columns["label"].to_pylist() == [None if label < 0 else label for label in labels.tolist()]
        best = torch.tensor(columns["scores"].to_pylist()).argmax(1)
        assert columns["prediction"].to_pylist() == best.tolist()


def test_regression_is_standardized_on_training_edges_and_keeps_the_unit(prepared: Prepare) -> None:
    task = task_of(prepared(**REGRESSION, links__val=0.2))
    scale = LabelScale.of(_training_labels(task))
    assert scale.mean[0] == pytest.approx(70, abs=2)
    found = task.evaluated(("val",), unwatched)
    assert found.scores["val"] < 40  # outputs are near 70, the mean, and not near 0
    columns = next(iter(found.predictions.pieces(Names())))
    labels = [value for value in columns["label"].to_pylist() if value is not None]
    assert torch.tensor(labels).mean() == pytest.approx(70, abs=3)
    plain = task_of(prepared(**REGRESSION, task__standardize="none"))
    assert plain.evaluated(("val",), unwatched).scores["val"] > 50


def test_training_edges_are_not_evaluated(prepared: Prepare) -> None:
    with pytest.raises(ValueError, match=r"split 'train': only held-out edges can be evaluated, in \['val'"):
        task_of(prepared()).scores(("train",), unwatched)


def split_of(graph: Path, seed: int) -> SplitEdges:
    values = {
        "graph": str(graph),
        "task": {"kind": "edge-regression", "label": "weight"},
        "sampler": {"fanouts": [3]},
        "links": {"val": 0.2},
        "training": {"seed": seed},
        "model": {"hidden": 4},
    }
    run_task = prepare(RawRun(values, "run.toml"), graph.parent).run_task
    assert isinstance(run_task, EdgeTask)
    return run_task.parts


def test_training_messages_are_the_training_edges_and_equal_runs_have_equal_parts(tmp_path: Path) -> None:
    graph = write_labeled_graph(tmp_path / "graph")
    one, again, other = (split_of(graph, seed) for seed in (1, 1, 2))
    split = one.split
    counts = [links.counts[LIKE] for links in (split.train_links, split.val_links, split.test_links)]
    assert sum(counts) == one.whole.num_edges(LIKE)
    assert split.train.num_edges(LIKE) == counts[0]
    assert split.test.num_edges(LIKE) == counts[0] + counts[1]
    assert abs(counts[1] - 288) < 30
    assert torch.equal(split.val_links.edges[LIKE], again.split.val_links.edges[LIKE])
    assert not torch.equal(split.val_links.edges[LIKE], other.split.val_links.edges[LIKE])
    assert (one.edge_type, one.fanouts, one.measured, one.followed) == (LIKE, ({LIKE: 3},), (), (LIKE,))
