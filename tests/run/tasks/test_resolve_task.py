"""The task of a run on nodes: choices that the graph leaves open have to be named.

Edge type, label and metric of a run over labels of edges are found; what does not fit is an error.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop.graph.build import write_graph
from khop.graph.folder import open_folder
from khop.graph.tables import EdgeTable, NodeTable
from khop.inference.chunks import unwatched
from khop.run.build import Run, graph_folder, notes_of, prepare, resolve, resolved
from khop.run.check import checked
from khop.run.read import RawRun, with_options
from khop.run.tables import TaskTable
from khop.run.tasks.resolve_task import with_node_defaults
from khop.schema import ColumnSpec, Schema
from support.small_labeled import write_labeled_graph, write_two_labels


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_two_labels(tmp_path_factory.mktemp("graphs") / "shop")


def test_a_choice_that_the_graph_leaves_open_has_to_be_named(shop: Path) -> None:
    raw = RawRun({"graph": str(shop)}, "run.toml")
    config = checked(raw)
    with pytest.raises(
        ValueError, match=r"task\.label is not given, and the label columns of item are color, shape"
    ):
        resolve(config, graph_folder(config, raw, shop), raw)


LABELED = {"x": torch.zeros(4, 2)}
SPLITS = {"train": torch.tensor([0, 1]), "val": torch.tensor([2]), "test": torch.tensor([3])}
PAIRS = EdgeTable(torch.arange(20) % 4, torch.arange(20) // 4 % 4)


@pytest.mark.parametrize(
    ("nodes", "edges", "task", "chosen", "note"),
    [
        (
            {"item": NodeTable(columns={**LABELED, "label": torch.rand(4)}, splits=SPLITS)},
            {},
            {},
            {"kind": "node-regression", "target": "item", "label": "label"},
            "task.kind is node-regression: 'label' of 'item' has such labels",
        ),
        (
            {"item": NodeTable(columns={**LABELED, "price": torch.rand(4)}, splits=SPLITS)},
            {},
            {"label": "price"},
            {"kind": "node-regression", "label": "price"},
            "'price' of 'item' has such labels",
        ),
        (
            {"item": NodeTable(columns=LABELED)},
            {("item", "like", "item"): PAIRS},
            {},
            {"kind": "link-prediction", "target": "item like item"},
            "task.kind is link-prediction: no node has a label",
        ),
        (
            {
                "item": NodeTable(
                    columns={**LABELED, "kind": torch.zeros(4, dtype=torch.int64)},
                    splits=SPLITS,
                    num_classes={"kind": 2},
                )
            },
            {("item", "like", "item"): PAIRS},
            {"target": "item like item"},
            {"kind": "link-prediction", "target": "item like item"},
            "task.kind is link-prediction: the target is an edge type",
        ),
        (
            {
                "item": NodeTable(
                    columns={n: torch.zeros(4, dtype=torch.int64) for n in ("kind", "y")} | LABELED,
                    splits={"train": SPLITS["train"], "valid": SPLITS["val"], "test": SPLITS["test"]},
                    num_classes={"kind": 2, "y": 2},
                ),
                "shop": NodeTable(
                    columns={"kind": torch.zeros(4, dtype=torch.int64)}, num_classes={"kind": 2}
                ),
            },
            {},
            {},
            {"target": "item", "label": "y", "val_split": "valid"},
            "task.target is item: it has all splits, unlike shop; task.label is y, of kind, y; --label names "
            "another one; task.val_split is valid: there is no split val",
        ),
    ],
)  # fmt: skip
def test_what_a_graph_leaves_one_choice_for_is_chosen_and_named(
    tmp_path: Path,
    nodes: dict[str, NodeTable],
    edges: dict[tuple[str, str, str], EdgeTable],
    task: dict[str, object],
    chosen: dict[str, object],
    note: str,
) -> None:
    graph = write_graph(tmp_path / "g", nodes, edges)
    raw = RawRun({"graph": str(graph), "task": task}, "run.toml")
    config, folder = resolved(raw, tmp_path)
    assert config.task.model_dump(include=set(chosen)) == chosen
    assert note in "; ".join(notes_of(config, folder.schema, raw))


def test_links_and_their_reverse_are_one_target(tmp_path: Path) -> None:
    liked = ("item", "liked", "user")
    users, items = torch.arange(20), torch.arange(20) % 4
    tables = {"user": NodeTable(count=20), "item": NodeTable(count=4)}
    likes = ("user", "likes", "item")
    edges = {likes: EdgeTable(users, items), liked: EdgeTable(items, users, reverse_of=likes)}
    graph = write_graph(tmp_path / "g", tables, edges)
    assert liked in open_folder(graph).schema.edge_types
    raw = RawRun({"graph": str(graph)}, "run.toml")
    config, folder = resolved(raw, tmp_path)
    assert (config.task.kind, config.task.target) == ("link-prediction", "user likes item")
    assert config.model.model_dump()["dropout"] == 0
    assert "task.target is user likes item, not its reverse" in notes_of(config, folder.schema, raw)


def test_a_graph_without_labels_cannot_be_classified(tmp_path: Path) -> None:
    graph = write_graph(tmp_path / "g", {"item": NodeTable(count=3)}, {})
    raw = RawRun({"graph": str(graph)}, "run.toml")
    config = checked(raw)
    with pytest.raises(ValueError, match=r"the graph has no node types with labels, which .*\(run\.toml\)"):
        resolve(config, graph_folder(config, raw, tmp_path), raw)


@pytest.mark.parametrize(
    ("column", "task", "named"),
    [
        (NodeTable(columns={"label": torch.rand(3)}), "node-classification", "node-regression"),
        (
            NodeTable(columns={"label": torch.ones(3, 2, dtype=torch.uint8)}),
            "node-classification",
            "multi-label",
        ),
        (
            NodeTable(columns={"y": torch.tensor([0, 1, 1])}, num_classes={"y": 2}),
            "multi-label",
            "node-classification",
        ),
    ],
)
def test_labels_of_another_kind_name_their_task(
    tmp_path: Path, column: NodeTable, task: str, named: str
) -> None:
    graph = write_graph(tmp_path / "g", {"item": column}, {})
    raw = RawRun({"graph": str(graph), "task": {"kind": task}}, "run.toml")
    config = checked(raw)
    with pytest.raises(ValueError, match=f"task.kind is '{task}', .*of 'item' .*give --task {named} \\("):
        resolve(config, graph_folder(config, raw, tmp_path), raw)


@pytest.mark.parametrize(
    ("columns", "given", "filled"),
    [
        ({"item": [], "shop": []}, (None, None), (None, None)),
        ({"item": []}, (None, None), ("item", None)),
        ({"item": ["color"], "shop": []}, (None, None), ("item", "color")),
        ({"item": ["color", "shape"], "shop": []}, (None, None), ("item", None)),
        ({"item": ["color"], "shop": ["size"]}, (None, None), (None, None)),
        ({"item": ["color"], "shop": ["size"]}, ("shop", None), ("shop", "size")),
        ({"item": ["color"]}, ("item in shop", None), ("item in shop", None)),
        ({"item": ["color"]}, ("item", "price"), ("item", "price")),
    ],
)
def test_a_task_from_outside_gets_the_only_node_type_and_label(
    columns: dict[str, list[str]], given: tuple[str | None, str | None], filled: tuple[str | None, str | None]
) -> None:
    specs = {t: {name: ColumnSpec("int64", (), 3) for name in names} for t, names in columns.items()}
    task = with_node_defaults(
        TaskTable(target=given[0], label=given[1]), Schema(tuple(columns), (), columns=specs)
    )
    assert (task.target, task.label) == filled


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
        (
            {"links__loss__kind": "bpr"},
            "links.loss.kind is 'bpr': the task edge-classification scores no pairs",
        ),
        ({"links__test": 0.0}, "links.test is 0.0: 0 of the 1440 links of item like item would be held out"),
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
