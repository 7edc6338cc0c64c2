"""A run on a graph that has changed since: what would silently mean something else is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import khop
from cli.conftest import Ran, khop_command

__all__ = ["khop_command"]
Command = Callable[..., Ran]
COUNT = 120


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def imported(order: np.ndarray, **label: object) -> None:
    """Import nodes in an order, with a category that tells the class."""
    shutil.rmtree("graph", ignore_errors=True)
    random = np.random.default_rng(1)
    color = np.array(["red", "blue"])[np.arange(COUNT) % 3 % 2][order]
    rows = pa.table({"id": order, "color": color, "y": np.where(color == "red", "cat", "dog")})
    links = pa.table({"a": random.choice(order, 300), "b": random.choice(order, 300)})
    nodes = {
        "rows": rows,
        "columns": {"color": "category"},
        "label": {"column": "y", **label},
        "split": {"ratio": [0.6, 0.2, 0.2]},
    }
    edges = {"rows": links, "source": "a", "destination": "b"}
    khop.import_tables({"nodes": {"u": nodes}, "edges": {"u to u": edges}}, "graph")


def said(ran: Ran) -> str:
    return " ".join((ran.stdout + ran.stderr).split())


def trained(khop_command: Command, *words: str) -> None:
    ran = khop_command(
        "train", "graph", "--epochs", "1", "--fanouts", "2", "--hidden", "4", *words, "--out", "run"
    )
    assert ran.code == 0, ran.stderr


def test_other_categories_or_classes_are_refused(khop_command: Command) -> None:
    every = np.arange(COUNT)
    imported(every, classes=["cat", "dog"])
    trained(khop_command)
    assert khop_command("evaluate", "run").code == 0
    imported(every[::-1].copy(), classes=["cat", "dog"])
    assert khop_command("evaluate", "run").code == 0  # other rows, but the same categories
    imported(every, classes=["dog", "cat"])
    refused = khop_command("evaluate", "run")
    assert refused.code == 2
    assert "graph was imported again since training" in said(refused)
    assert "the classes of u are others" in said(refused)
    color = np.arange(COUNT) % 3 % 2
    imported(np.concatenate([every[color == 1], every[color == 0][:20]]), classes=["cat", "dog"])
    refused = khop_command("evaluate", "run")
    assert refused.code == 2
    assert "the categories of u.color are others, or in another order" in said(refused)


def test_links_that_are_split_anew_after_a_delete_are_named(khop_command: Command) -> None:
    imported(np.arange(COUNT))
    trained(khop_command, "--task", "link-prediction")
    warning = "scores may be of links that the model was trained on, and too high"
    assert warning not in said(khop_command("evaluate", "run"))
    khop.append("graph", {"nodes": {"u": {"rows": pa.table({"id": [500], "color": ["red"], "y": ["cat"]})}}})
    assert warning not in said(khop_command("evaluate", "run"))
    khop.append("graph", delete={"u": [0]})
    assert warning in said(khop_command("evaluate", "run"))


def test_the_label_is_no_input(khop_command: Command) -> None:
    random = torch.Generator().manual_seed(1)
    target, ids = torch.randn(COUNT, generator=random), torch.randperm(COUNT, generator=random)
    splits = {"train": ids[:80], "val": ids[80:100], "test": ids[100:]}
    edges = khop.EdgeTable(*torch.randint(COUNT, (2, 300), generator=random))
    khop.write_graph("graph", {"u": khop.NodeTable(COUNT, {"target": target}, splits)}, {"u to u": edges})
    given = ("--task", "node-regression")
    trained(khop_command, *given)
    config = Path("run/config.toml").read_text()
    assert 'label = "target"' in config
    assert 'column = "target"' not in config
    refused = khop_command("train", "graph", *given, "--column", "target", "--fanouts", "2")
    assert refused.code == 2
    assert "model.column is 'target': it is the label of u" in said(refused)
