"""`khop infer`: a row for every node, in a file; what was stopped goes on."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

import khop
from cli.conftest import Ran
from cli.test_processes import KHOP
from support.commands import ENVIRONMENT
from support.gate import WAIT_S, Gate
from support.small_link_folders import write_diary, write_shop

Command = Callable[..., Ran]


def test_every_node_has_a_row_and_its_id_and_stdout_says_where(
    khop_command: Command, trained_run: None
) -> None:
    ran = khop_command("infer", "a", "--out", "e.npy", "--json")
    outcome = json.loads(ran.stdout)
    assert {**outcome, "seconds": 0} == {
        "run": "a", "checkpoint": "best", "values": "embeddings", "files": ["e.npy"], "rows": [600],
        "seconds": 0,
    }  # fmt: skip
    assert (
        "needs up to 77.1 kB of disk space; the result takes 43.3 kB; unfinished work is in e.npy.unfinished"
        in ran.stderr
    )
    assert np.load("e.npy").shape == (600, 16)
    assert np.array_equal(np.load("e.ids.npy"), np.arange(600))


def test_outputs_of_a_split_score_what_evaluation_says(khop_command: Command, trained_run: None) -> None:
    khop_command("infer", "a", "--out", "o.parquet", "--values", "outputs", "--split", "test")
    table = pyarrow.parquet.read_table("o.parquet")
    labels = np.load(next(graph_of("a").rglob("category.npy")))
    predicted = np.array(table["output"].to_pylist()).argmax(1)
    accuracy = (predicted == labels[table["node"].to_numpy()]).mean()
    measured = json.loads(khop_command("evaluate", "a", "--json").stdout)["test_accuracy"]
    assert accuracy == pytest.approx(measured)


def graph_of(run: str) -> Path:
    line = next(
        line for line in Path(run, "config.toml").read_text().splitlines() if line.startswith("graph")
    )
    return Path(line.split('"')[1])


def test_the_nodes_of_a_file_come_in_its_order(khop_command: Command, trained_run: None) -> None:
    np.save("ids.npy", np.array([5, 3, 599], dtype=np.int32))
    khop_command("infer", "a", "--out", "some.npy", "--ids", "ids.npy")
    khop_command("infer", "a", "--out", "all.npy")
    assert np.load("some.ids.npy").tolist() == [5, 3, 599]
    np.testing.assert_allclose(np.load("some.npy"), np.load("all.npy")[[5, 3, 599]], rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_a_run_of_links_has_a_file_for_each_end(
    khop_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_shop(tmp_path / "shop")
    Path("run.toml").write_text("""
        graph = "shop"
        task = { kind = "link-prediction", target = "user buys item" }
        sampler = { fanouts = [4] }
        model = { hidden = 8, embedding = 4 }
        training = { epochs = 1 }
    """)
    assert khop_command("train", "run.toml", "--out", "a").code == 0
    ran = khop_command("infer", "a", "--out", "e.npy", "--json")
    assert json.loads(ran.stdout)["files"] == ["e.user.npy", "e.item.npy"]
    assert np.load("e.user.npy").shape == (120, 8)
    khop_command("infer", "a", "--out", "items.npy", "--node-type", "item")
    np.testing.assert_allclose(np.load("items.npy"), np.load("e.item.npy"), rtol=1e-5, atol=1e-6)


@pytest.mark.core(4)
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--out", "e.csv"], "e.csv: give a name that ends in .npy or .parquet"),
        (["--out", "run.npy"], "run.npy: exists already; remove it or choose another name"),
        (["--node-type", "user"], "node type 'user': not in the graph; it has item"),
        (["--split", "tset"], "toy: no split 'tset'; there are ['train', 'val', 'test']"),
        (["--split", "val", "--ids", "x.npy"], "--split and --ids both select nodes: give only one of them"),
        (["--ids", "x.npy"], "x.npy: no such file; --ids takes a .npy file of node ids"),
        (["--ids", "run.toml"], "run.toml: not a .npy file; --ids takes one of node ids"),
        (
            ["--ids", "run.npy"],
            "run.npy: contains float64 of shape (3,); --ids takes a list of whole numbers",
        ),
        (["--checkpoint", "last", "--evaluation-batch-size", "0"], "must be a whole number of at least 1"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    khop_command: Command, trained_run: None, options: list[str], sentence: str
) -> None:
    np.save("run.npy", np.zeros(3))
    ran = khop_command("infer", "a", *([] if "--out" in options else ["--out", "e.npy"]), *options)
    assert ran.code == 2
    assert ran.stderr.startswith("khop: ")
    assert sentence in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert not Path("e.npy.unfinished").exists()


def test_a_folder_that_is_no_run_says_so(khop_command: Command, small_run: Path) -> None:
    ran = khop_command("infer", "b", "--out", "e.npy")
    assert (
        ran.stderr
        == "khop: b: not a run folder, it has no config.toml; give a folder written by khop train\n"
    )


@pytest.mark.long
def test_rows_of_a_run_with_times_are_those_of_the_end_of_the_data(
    khop_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_diary(tmp_path / "diary")
    Path("run.toml").write_text("""
        graph = "diary"
        task = { kind = "node-classification", target = "user", label = "kind" }
        sampler = { fanouts = [4, 4], time = "day" }
        evaluation = { fanouts = [4, 4] }
        model = { hidden = 8 }
        training = { epochs = 1 }
    """)
    assert khop_command("train", "run.toml", "--out", "a").code == 0
    ran = khop_command("infer", "a", "--values", "outputs", "--out", "e.npy")
    assert ran.code == 0, ran.stderr
    assert "rows are computed as of the latest time in the data" in ran.stdout
    run = khop.load_run("a").run
    expected = khop.layerwise_inference(run.model, run.graph, run.graph.features, "user")
    np.testing.assert_allclose(np.load("e.npy"), expected.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_a_run_that_draws_the_latest_edges_is_refused(
    khop_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_diary(tmp_path / "diary")
    given = ("--graph", "diary", "--target", "user", "--label", "kind", "--time", "day", "--hidden", "8")
    latest = ("--temporal-strategy", "latest", "--epochs", "1", "--out", "a")
    assert khop_command("train", *given, *latest).code == 0
    ran = khop_command("infer", "a", "--out", "e.npy")
    assert ran.code == 2
    assert "inference over all neighbors would use edges that training leaves out" in ran.stderr


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """As on a disk that is full beyond it."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def test_a_full_disk_is_one_line_and_the_work_continues_later(
    khop_command: Command, trained_run: None
) -> None:
    khop_command("infer", "a", "--out", "whole.npy", "--values", "outputs")
    with files_up_to(20_000):  # the hidden layer takes 38 kB
        ran = khop_command("infer", "a", "--out", "e.npy", "--values", "outputs")
    assert ran.code == 1
    assert ran.stderr == (
        "khop: e.npy: no space for the rows (File too large); free some space and run it again to "
        "continue from e.npy.unfinished\n"
    )
    assert not Path("e.npy").exists()
    assert khop_command("infer", "a", "--out", "e.npy", "--values", "outputs").code == 0
    assert Path("e.npy").read_bytes() == Path("whole.npy").read_bytes()


CHUNKS_OF_4 = ["--evaluation-batch-size", "4"]


@contextmanager
def begun(gate: Gate, *options: str) -> Iterator[subprocess.Popen[str]]:
    """An inference of 300 chunks, whose processes stand at the gate."""
    gated = [sys.executable, "-m", "support.gated_khop"]
    command = [*gated, "infer", "a", "--out", "parts.npy", *CHUNKS_OF_4, *options]
    running = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | gate.environment,
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def chunks_done() -> list[tuple[str, int]]:
    journals = Path("parts.npy.unfinished").glob("journals/*")
    lines = [json.loads(line) for file in journals for line in file.read_text().splitlines()]
    return [(line["stage"], chunk) for line in lines for chunk in line["chunks"]]


@pytest.mark.long
def test_killed_and_stopped_work_continues_with_other_ranks_to_the_same_bytes(
    khop_command: Command, trained_run: None
) -> None:
    gate = Gate.shut(Path("two"), "chunk 1")
    with begun(gate, "--procs", "2") as two:
        for rank in gate.wait_for(2, two):
            with suppress(ProcessLookupError):  # the other was faster to end it
                os.kill(rank, signal.SIGKILL)
        _, errors = two.communicate(timeout=WAIT_S)
    assert two.returncode == 1
    assert "killed by SIGKILL" in errors
    assert not Path("parts.npy").exists()
    assert len(chunks_done()) == 2

    gate = Gate.shut(Path("one"), "chunk 1")
    with begun(gate) as one:
        assert gate.wait_for(1, one) == [one.pid]
        one.send_signal(signal.SIGINT)
        _, errors = one.communicate(timeout=WAIT_S)
    assert one.returncode == 130
    assert errors == (
        "khop: stopped; finished rows are in parts.npy.unfinished; run the same command again to continue\n"
    )
    assert len(set(chunks_done())) == 3  # none of them twice

    ran = khop_command("infer", "a", "--out", "parts.npy", *CHUNKS_OF_4)
    assert "continues from parts.npy.unfinished" in ran.stdout
    khop_command("infer", "a", "--out", "whole.npy", *CHUNKS_OF_4)
    assert Path("parts.npy").read_bytes() == Path("whole.npy").read_bytes()
    assert not Path("parts.npy.unfinished").exists()


@pytest.mark.long
def test_two_processes_write_what_one_does(khop_command: Command, trained_run: None) -> None:
    command = [*KHOP, "infer", "a", "--out", "two.parquet", "--procs", "2", "--deadline", "60", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=True)
    assert json.loads(done.stdout)["files"] == ["two.parquet"]
    khop_command("infer", "a", "--out", "one.npy")
    rows = np.array(pyarrow.parquet.read_table("two.parquet")["embedding"].to_pylist(), dtype=np.float32)
    assert np.array_equal(rows, np.load("one.npy"))
