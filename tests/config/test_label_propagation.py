"""Label propagation of a run: scores of splits that give no labels, by the metrics of the task."""

from __future__ import annotations

from pathlib import Path

from khop.config.build import prepare
from khop.config.label_propagation import label_propagation
from khop.config.read import RawRun
from support.small_labeled import write_labeled_graph


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
