"""Edge type, label and metric of a run over labels of edges are found; what does not fit is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from khop.config.build import Run, prepare
from khop.config.read import RawRun, with_options
from khop.inference.chunks import unwatched
from support.small_labeled import write_labeled_graph


@pytest.fixture(scope="module")
def labeled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_labeled_graph(tmp_path_factory.mktemp("graphs") / "labeled")


def prepared(labeled: Path, options: dict[str, object]) -> Run:
    task = {"kind": "edge-classification", "label": "stars"}
    values = {"graph": str(labeled), "task": task, "model": {"hidden": 4}}
    return prepare(
        with_options(RawRun(values, "run.toml"), {k.replace("__", "."): v for k, v in options.items()}),
        labeled.parent,
    )


def test_edge_type_metric_and_the_column_label_are_found(labeled: Path) -> None:
    task = prepared(labeled, {}).config.task
    assert (task.target, task.label, task.metric) == ("item like item", "stars", "accuracy")
    task = prepared(labeled, {"task__kind": "edge-regression", "task__label": "weight"}).config.task
    assert (task.target, task.label, task.metric) == ("item like item", "weight", "rmse")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task__label": "size"}, r"task.label is 'size': the label columns of item like item are stars"),
        ({"task__target": "item"}, "task.target is 'item': the edge types with labels are item like item"),
        ({"task__metric": "rmse"}, "task.metric is 'rmse': must be one of"),
        ({"task__classes": 2}, "has stars 2: must be 0 to 1, or -1 for unknown"),
        ({"links__loss": "bpr"}, "links.loss is 'bpr': the task edge-classification scores no pairs"),
        ({"links__test": 0.0}, "links.test is 0.0: of 1440 links of item like item that holds out none"),
        (
            {"task__kind": "edge-regression", "task__label": "price"},
            "the label columns of item like item are stars, weight",
        ),
    ],
)
def test_what_does_not_fit_the_graph_is_one_sentence(
    labeled: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        prepared(labeled, options).run_task.scores(("val",), unwatched)
