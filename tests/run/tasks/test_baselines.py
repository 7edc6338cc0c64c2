"""A run says that draws by weight without replacement are biased, where this changes its evaluation.

Label propagation of a run: scores of splits that give no labels, by the metrics of the task.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop.graph.build import write_graph
from khop.graph.tables import EdgeTable, NodeTable
from khop.run.build import prepare
from khop.run.read import RawRun
from khop.run.tasks.baselines import biased_draws, label_propagation, unread_edge_columns
from support.small_labeled import write_labeled_graph


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nodes of two classes, with edges that have a weight, a mask and a time."""
    generator = torch.Generator().manual_seed(2)
    label = torch.arange(60) % 2
    nodes = NodeTable(
        columns={"x": torch.rand(60, 3), "label": label, "time": torch.full((60,), 600)},
        splits={"train": torch.arange(40), "val": torch.arange(40, 50), "test": torch.arange(50, 60)},
        num_classes={"label": 2},
    )
    columns = {"w": torch.rand(600), "mask": torch.rand(600) < 0.5, "time": torch.arange(600)}
    edges = EdgeTable(*torch.randint(60, (2, 600), generator=generator), columns)
    path = tmp_path_factory.mktemp("graphs") / "weighed"
    return write_graph(path, {"node": nodes}, {("node", "to", "node"): edges}, sort_by="time")


def said(graph: Path, sampler: dict[str, object], **tables: object) -> str | None:
    values = {"graph": str(graph), "sampler": {"fanouts": [3, 2], **sampler}, **tables}
    run = prepare(RawRun(values, "run.toml"), graph.parent)
    return biased_draws(run.config, run.graph)


@pytest.mark.parametrize(
    ("sampler", "remedy"),
    [
        ({"weight": "w"}, "with sampler.replacement = true"),
        ({"rule": {"kind": "weighted", "column": "w"}}, "with sampler.rule.replacement = true"),
        ({"rule": {"kind": "sum", "column": "w"}}, "with sampler.rule.replacement = true"),
    ],
    ids=str,
)
def test_biased_draws_are_named_with_the_remedy(graph: Path, sampler: dict[str, object], remedy: str) -> None:
    sentence = said(graph, sampler)
    assert sentence is not None
    assert remedy in sentence


@pytest.mark.parametrize(
    ("sampler", "tables"),
    [
        ({}, {}),
        ({"weight": "w", "replacement": True}, {}),
        ({"weight": "mask"}, {}),
        ({"weight": "w", "fanouts": [-1, -1]}, {}),
        ({"weight": "w"}, {"evaluation": {"fanouts": [3, 2]}}),
        ({"weight": "w"}, {"model": {"kind": "gat", "hidden": 8}}),
        ({"weight": "w", "time": "time"}, {"evaluation": {"fanouts": [3, 2]}}),
    ],
    ids=str,
)
def test_other_runs_say_nothing(
    graph: Path, sampler: dict[str, object], tables: dict[str, dict[str, object]]
) -> None:
    assert said(graph, sampler, **tables) is None


@pytest.mark.parametrize(
    ("tables", "unread"),
    [
        ({}, "w, mask of node to node"),
        ({"sampler": {"fanouts": [3, 2], "weight": "w"}}, "mask of node to node"),
        ({"model": {"kind": "gat", "edge_column": "w"}}, "mask of node to node"),
        ({"task": {"kind": "link-prediction"}}, "w, mask of node to node"),
    ],
)
def test_columns_of_edges_that_nothing_reads_are_named(
    graph: Path, tables: dict[str, dict[str, object]], unread: str
) -> None:
    run = prepare(RawRun({"graph": str(graph), **tables}, "run.toml"), graph.parent)
    found = unread_edge_columns(run.config, run.graph, run.model)
    assert found is not None
    assert f"does not read: {unread}. --model gat --edge-column" in found


def test_scores_are_of_held_out_nodes_and_of_classes_alone(tmp_path: Path) -> None:
    graph = str(write_labeled_graph(tmp_path / "graph"))

    def scores(task: dict[str, str]) -> dict[str, float]:
        values = {"graph": graph, "task": task, "model": {"hidden": 4}, "sampler": {"fanouts": [2]}}
        run = prepare(RawRun(values, "run.toml"), tmp_path)
        return dict(label_propagation(run, ("train", "val", "test"), ("f1-micro",)))

    found = scores({"label": "kind"})
    names = [f"{s}/label-propagation/{m}" for s in ("val", "test") for m in ("accuracy", "f1-micro")]
    assert list(found) == names
    assert found["val/label-propagation/accuracy"] == found["val/label-propagation/f1-micro"]
    assert 0 < found["test/label-propagation/accuracy"] < 1
    assert scores({"kind": "node-regression", "label": "price"}) == {}
    assert scores({"kind": "edge-classification", "label": "stars"}) == {}
