"""`khop info` and `khop verify`: a graph by its name, a folder that is not there, a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from khop.cli.main import app
from khop.graph.build import write_graph
from khop.graph.tables import EdgeTable, NodeTable

BUYS, BOUGHT_BY = ("user", "buys", "item"), ("item", "bought-by", "user")


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """1,200 users, three items of which the last is isolated, each user bought item 0 or 1."""
    users = np.arange(1200)
    items = users % 2
    x = np.zeros((3, 8), np.float32)
    table = NodeTable(
        columns={"x": x, "y": np.array([0, 1, 6])}, splits={"train": np.array([0, 2])}, num_classes={"y": 7}
    )
    edges = {
        BUYS: EdgeTable(users, items, {"price": users * 1.0}),
        BOUGHT_BY: EdgeTable(items, users, reverse_of=BUYS),
    }
    return write_graph(tmp_path / "shop", {"user": NodeTable(1200), "item": table}, edges)


def khop(*arguments: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, arguments)
    return result.exit_code, result.output


def test_a_built_in_graph_goes_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KHOP_CACHE", str(tmp_path))
    code, output = khop("info", "--json", "debian")
    summary = json.loads(output)
    assert code == 0
    assert summary["path"].startswith(str(tmp_path))
    assert [node["type"] for node in summary["nodes"]] == ["package"]
    code, output = khop("verify", "debian")
    assert (code, output) == (0, f"{summary['path']}: no problems found\n")


@pytest.mark.parametrize("command", ["info", "verify"])
def test_no_folder_is_one_line_and_exit_code_2(
    khop_command: Callable[..., object], tmp_path: Path, command: str
) -> None:
    ran = khop_command(command, str(tmp_path / "nowhere"))
    assert ran == type(ran)(2, "", f"khop: {tmp_path}/nowhere: no such folder; write_graph makes one\n")


def test_a_real_process_fails_as_scripts_expect(graph: Path) -> None:
    (graph / "nodes/item/x.npy").unlink()
    done = subprocess.run(
        [sys.executable, "-m", "khop", "verify", str(graph)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    errors = [line for line in done.stderr.splitlines() if not line.startswith("khop: checking")]
    assert (done.returncode, errors) == (1, [])
    assert f"{graph}/nodes/item/x.npy: is missing; " in done.stdout
    assert done.stdout.endswith(f"{graph}: 1 finding\n")
