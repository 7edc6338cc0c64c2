"""`khop info` of a graph folder: what people look for, as tables and as JSON.

The table of a partitioned graph: that of the graph before, and one line per part.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from typer.testing import CliRunner

from cli.conftest import Ran
from cli.test_graph import BUYS, khop
from cli.test_graph import graph as graph
from khop.cli.main import app
from khop.graph.atomic import ProgressCallback
from khop.graph.build import write_graph
from khop.graph.describe import FolderSummary, describe_folder
from khop.graph.folder import open_folder
from khop.graph.tables import NodeTable


def test_info_shows_what_people_look_for(graph: Path) -> None:
    code, output = khop("info", str(graph))
    assert code == 0
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert any(line.startswith("user 1,200") for line in lines)
    assert any(line.startswith("item 3 train 2") for line in lines)
    assert any(line.startswith("user -buys-> item 1,200 0 600 600 600 600 1 ") for line in lines)
    assert "reverse of item -bought-by-> user" in lines
    assert any(line.startswith("item x float32 8 ") for line in lines)
    assert any(line.startswith("item y int64 number 7 ") for line in lines)
    assert any(line.startswith("user -buys-> item price float64 number ") for line in lines)
    assert any("512-1,023 ████████████████████ 2" in line for line in lines)
    assert f"fingerprint {open_folder(graph).fingerprint[:12]}" in " ".join(output.split())


def test_info_as_json_is_one_object(graph: Path) -> None:
    code, output = khop("info", "--json", str(graph))
    summary = json.loads(output)
    assert code == 0
    assert summary["nodes"][1]["splits"] == {"train": 2}
    assert summary["edges"][0]["type"] == list(BUYS)
    assert summary["edges"][0]["degrees"]["isolated"] == 1
    assert summary["edges"][0]["degrees"]["histogram"][-1] == {"low": 512, "high": 1023, "nodes": 2}


def test_info_of_an_empty_graph_has_tables_without_rows(tmp_path: Path) -> None:
    code, output = khop("info", str(write_graph(tmp_path / "empty", {}, {})))
    assert code == 0
    assert "0 bytes" in output


def test_info_of_a_sparse_column_has_its_width_and_its_longest_row(tmp_path: Path) -> None:
    words = sparse.csr_array(np.eye(3, 400, dtype=np.float32))
    code, output = khop(
        "info", str(write_graph(tmp_path / "words", {"page": NodeTable(columns={"x": words})}, {}))
    )
    assert code == 0
    assert "page x sparse float32 1 of 400" in " ".join(output.split())


@pytest.mark.long
def test_progress_is_on_the_terminal_alone(graph: Path) -> None:
    shown = CliRunner(env={"COLUMNS": "120", "FORCE_COLOR": "1"}).invoke(app, ["info", "--json", str(graph)])
    silent = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["info", "--json", str(graph)])
    assert "100% 0:00:00 reading item__bought-by__user/indptr.npy" in re.sub(
        r"\x1b\[[\d;?]*\w", "", shown.stderr
    )
    assert json.loads(shown.stdout) == json.loads(silent.stdout)
    assert silent.stderr == ""


def test_progress_of_long_reads_is_in_logs(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("khop.cli.terminal.FIRST_S", 0.01)
    monkeypatch.setattr("khop.cli.terminal.NEXT_S", 0.01)
    at, printed = "reading user__buys__item/indptr.npy: 25 %", threading.Event()
    monkeypatch.setattr("khop.cli.terminal.tell", lambda line: at in line and printed.set())

    def slow(folder: Path, progress: ProgressCallback) -> FolderSummary:
        progress("reading user__buys__item/indptr.npy", 1, 4)
        assert printed.wait(60)
        return describe_folder(folder, progress)

    monkeypatch.setattr("khop.cli.info.describe_folder", slow)
    done = CliRunner().invoke(app, ["info", "--json", str(graph)])
    assert json.loads(done.stdout)["edges"]


Command = Callable[..., Ran]


@pytest.fixture
def parts(khop_command: Command, small_run: Path, learnable: Path) -> str:
    khop_command("partition", str(learnable), "parts", "--parts", "3")
    return "parts"


def test_info_of_parts_is_that_of_the_graph_and_of_each(
    khop_command: Command, parts: str, learnable: Path
) -> None:
    before = json.loads(khop_command("info", str(learnable), "--json").stdout)
    summary = json.loads(khop_command("info", parts, "--json").stdout)
    whole = summary["whole"]
    on_disk = {file: file.stat().st_size for file in Path(parts).rglob("*.npy")}
    assert whole["num_bytes"] == sum(on_disk.values())
    for kind, facts in (("nodes", ("type", "count", "splits")), ("edges", ("type", "count", "degrees"))):
        assert [[of[fact] for fact in facts] for of in whole[kind]] == [
            [of[fact] for fact in facts] for of in before[kind]
        ]
    assert sum(part["nodes"] for part in summary["parts"]) == sum(node["count"] for node in before["nodes"])
    assert sum(part["edges"] for part in summary["parts"]) == sum(edge["count"] for edge in before["edges"])
    features = Path("parts/part-0002/nodes/item/x.npy")
    left = summary["parts"][2]["num_bytes"] - features.stat().st_size
    features.unlink()  # of another machine's part edges may be here alone
    assert json.loads(khop_command("info", parts, "--json").stdout)["parts"][2]["num_bytes"] == left
    Path("parts/part-0001").rename("elsewhere")
    shown = khop_command("info", parts).stdout
    assert "part-0001" in shown
    assert shown.count("not here") == 1
    for part in ("parts/part-0000", "parts/part-0002"):
        Path(part).rename(Path("elsewhere") / Path(part).name)
    assert "none of its 3 parts is on this machine" in khop_command("info", parts).stderr


# `khop info` and `khop verify`: a graph by its name, a folder that is not there, a process of its own.


@pytest.mark.long
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
    assert ran == type(ran)(
        2, "", f"khop: {tmp_path}/nowhere: no such folder; khop import and write_graph make one\n"
    )


@pytest.mark.long
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
