"""The task of a run on nodes: choices that the graph leaves open have to be named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop.config.read import RawRun, checked
from khop.config.resolve import graph_folder, resolve
from khop.config.resolve_task import with_node_defaults
from khop.config.tables import TaskTable
from khop.graph.build import write_graph
from khop.graph.tables import EdgeTable, NodeTable
from khop.schema import ColumnSpec, Schema

TABLES = {
    "item": NodeTable(
        columns={
            "x": torch.zeros(4, 2),
            "color": torch.tensor([0, 1, -1, 1]),
            "shape": torch.tensor([2, 2, 0, 1]),
        },
        splits={"train": torch.tensor([0, 1]), "val": torch.tensor([3]), "test": torch.tensor([2])},
        num_classes={"color": 2, "shape": 3},
    ),
    "shop": NodeTable(count=2, splits={"open": torch.tensor([1])}),
}  # fmt: skip


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    edges = {("item", "in", "shop"): EdgeTable(torch.arange(4), torch.zeros(4, dtype=torch.int64))}
    return write_graph(tmp_path_factory.mktemp("graphs") / "shop", TABLES, edges)


def test_a_choice_that_the_graph_leaves_open_has_to_be_named(shop: Path) -> None:
    raw = RawRun({"graph": str(shop)}, "run.toml")
    config = checked(raw)
    with pytest.raises(
        ValueError, match=r"task\.label is not given, and the label columns of item are color, shape"
    ):
        resolve(config, graph_folder(config, raw, shop), raw)


def test_a_graph_without_labels_cannot_be_classified(tmp_path: Path) -> None:
    graph = write_graph(tmp_path / "g", {"item": NodeTable(count=3)}, {})
    raw = RawRun({"graph": str(graph)}, "run.toml")
    config = checked(raw)
    with pytest.raises(ValueError, match=r"the node types with labels are none: name one \(run\.toml\)"):
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
