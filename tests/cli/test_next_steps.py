"""Each command ends with the commands that come next."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
import typer
from rich.console import Console

from cli.conftest import Ran
from khop.api.partition import partition_graph
from khop.cli.main import PANELS, app
from khop.cli.terminal import reading, say_next
from khop.graph.build import write_graph
from khop.graph.tables import EdgeTable, NodeTable
from support.small_link_folders import write_diary

Command = Callable[..., Ran]
# Each also says more than a command: for example, to whom a token is given.
MARKS = (
    "Next:",
    "Show it:",
    "Show a part:",
    "Train on it:",
    "Train on them:",
    "Predict them:",
    "Recommend for them:",
    "pass it to one client",
    "as the first line of",
)
PLAN = "plan --nodes 1e6 --edges 1e7 --feature-bytes 400 --fanouts 9,9 --machines 4 --network 10"
LIGHT = {
    "info": ["info", "graph"],
    "verify": ["verify", "graph"],
    "init": ["init", "graph"],
    "partition": ["partition", "graph", "out", "--parts", "2"],
    "part-files": ["part-files", "parts", "--machine", "0", "--machines", "2"],
    "plan": PLAN.split(),
    "graph sort": ["graph", "sort", "shop", "out", "--by", "at"],
    "graph cluster": ["graph", "cluster", "graph", "out", "--clusters", "3"],
    "graph walks": ["graph", "walks", "graph", "out", "--path", "item like item"],
    "graph split": ["graph", "split", "graph", "out", "--links", "item like item"],
    "graph propagate": ["graph", "propagate", "graph", "out", "--columns", "x", "--hops", "1"],
    "graph resplit": ["graph", "resplit", "graph", "out", "--ratio", "0.6,0.2"],
    "lookup": ["lookup", "shop", "user", "bob"],
    "import": ["import", "--guess", "users.csv"],
    "runs": ["runs"],
    "doctor": ["doctor"],
    "schema": ["schema"],
    "help": ["help"],
    "version": ["version"],
    "servers token": ["servers", "token", "alice"],
}
OF_RUNS = {
    "train": ["train", "run.toml"],
    "evaluate": ["evaluate", "one"],
    "infer": ["infer", "one", "--out", "e.npy"],
    "profile": ["profile", "run.toml", "--steps", "2"],
    "compare": ["compare", "one", "two"],
    "report": ["report", "one", "-o", "report.html"],
}
OF_SERVERS = {"serve", "servers status"}
ELSEWHERE = {  # in the test files of these commands, which make what they need
    "predict", "recommend", "append", "compact",
}  # fmt: skip


def words_of(command: object, path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, each in getattr(command, "commands", {}).items():
        if hasattr(each, "commands"):
            yield from words_of(each, (*path, name))
        else:
            yield " ".join((*path, name))


@pytest.fixture
def place(khop_command: Command, learnable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a graph, its parts, a table, and a person who reads stdout."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph").symlink_to(learnable)
    (tmp_path / "runs").mkdir()
    (tmp_path / "users.csv").write_text("user_id,age\na,1\nb,2\n")
    monkeypatch.setattr("khop.cli.terminal.stdout_is_a_terminal", lambda: True)
    return tmp_path


def test_every_command_is_tried_here_or_in_its_own_file() -> None:
    known = {*LIGHT, *OF_RUNS, *OF_SERVERS, *ELSEWHERE}
    assert set(words_of(typer.main.get_command(app))) == known


def test_every_command_has_a_panel_in_the_help() -> None:
    listed = [name for names in PANELS.values() for name in names]
    assert sorted(listed) == sorted({words.split()[0] for words in words_of(typer.main.get_command(app))})


@pytest.mark.core(2)
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=[pytest.mark.long] if command == "doctor" else [])  # which tries kernels
        for command in sorted(set(LIGHT) - {"lookup", "graph sort", "part-files"})
    ],
)
def test_a_command_ends_with_commands_that_run(khop_command: Command, place: Path, command: str) -> None:
    ran = khop_command(*LIGHT[command])
    check(ran)
    if command == "plan":  # the words in capitals are of the user
        (place / "run.toml").write_text(khop_command("init", "graph").stdout)
    follow(khop_command, ran, {"GRAPH": "graph", "PARTS": "parts"})


@pytest.mark.long
def test_commands_on_parts_and_on_columns_do_too(khop_command: Command, place: Path) -> None:
    partition_graph(place / "graph", place / "parts", 2)
    times = EdgeTable(torch.tensor([0, 1]), torch.tensor([1, 0]), columns={"at": torch.tensor([7, 5])})
    write_graph("shop", {"user": NodeTable(ids=["ann", "bob"])}, {("user", "knows", "user"): times})
    for command in ("part-files", "lookup", "graph sort"):
        ran = khop_command(*LIGHT[command])
        check(ran)
        follow(khop_command, ran, {"rsync": "true"})  # rsync copies to another machine


@pytest.mark.long
def test_commands_on_runs_end_with_what_to_do_next(khop_command: Command, small_run: Path) -> None:
    for name in ("one", "two"):
        check(khop_command("train", "run.toml", "--epochs", "1", "--out", name))
    for words in OF_RUNS.values():
        ran = khop_command(*words)
        check(ran)
        follow(khop_command, ran)


@pytest.mark.long
@pytest.mark.parametrize("settings", [(), ("--window", "30,0"), ("--temporal-strategy", "latest")], ids=str)
def test_the_commands_after_a_training_by_time_run(
    khop_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...]
) -> None:
    """All nodes are scored by one command, unless training leaves out a part of the earlier edges."""
    monkeypatch.chdir(tmp_path)
    write_diary(tmp_path / "diary")
    given = ("--graph", "diary", "--target", "user", "--label", "kind", "--time", "day", "--hidden", "8")
    ran = khop_command("train", *given, *settings, "--epochs", "1", "--out", "a")
    check(ran)
    follow(khop_command, ran)
    assert Path("a/scores.npy").is_file() is (settings == ())


def commands_in(ran: Ran) -> list[str]:
    """The command lines that come next: those below "Next:", and those that end a sentence."""
    text = ran.stdout + ran.stderr
    below = [part for part in text.partition("\nNext:\n")[2].splitlines() if part.strip()]
    of_sentences = [
        line.partition(mark)[2].strip()
        for line in text.splitlines()
        for mark in MARKS
        if mark.endswith(":") and mark != "Next:" and mark in line
    ]
    return [*below, *of_sentences]


def follow(khop_command: Command, ran: Ran, places: Mapping[str, str] = MappingProxyType({})) -> None:
    """Run each command that comes next. Training is of one epoch; `places` are the user's words."""
    for line in commands_in(ran):
        for one in line.split(" && "):
            words = [places.get(word, word) for word in shlex.split(one)]
            words, _, file = (words[:-2], ">", words[-1]) if ">" in words else (words, "", "")
            if words[0] == "true":
                continue
            if words[0] != "khop":
                subprocess.run([sys.executable, *words[1:]], capture_output=True, check=True)
                continue
            short = ("--epochs", "1", "--hidden", "8") if words[1] == "train" else ()
            done = khop_command(*words[1:], *short)
            assert done.code == 0, (line, done)
            if file:
                Path(file).write_text(done.stdout)


def check(ran: Ran) -> None:
    assert ran.code == 0, ran
    assert any(mark in "\n".join((ran.stdout + ran.stderr).splitlines()[-4:]) for mark in MARKS), ran


def test_output_for_another_program_has_no_next_step(
    khop_command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Next:" in khop_command("init", "graph").stderr
    monkeypatch.setattr("khop.cli.terminal.stdout_is_a_terminal", lambda: False)
    ran = khop_command("init", "graph")
    assert ran.stderr == ""
    assert "Next:" not in ran.stdout


@pytest.mark.core(1)
@pytest.mark.parametrize("name", ["with 'quotes'.npy", "rows.npy"])
def test_the_command_that_reads_a_file_of_rows_runs(tmp_path: Path, name: str) -> None:
    import numpy as np

    np.save(tmp_path / name, np.arange(8).reshape(4, 2))
    command = reading(tmp_path / name)
    shown = subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True, check=True)
    assert shown.stdout == "[[0 1]\n [2 3]\n [4 5]]\n"


def test_next_commands_can_be_copied_and_a_redirect_stays_one() -> None:
    console = Console(width=40)
    with console.capture() as printed:
        say_next(console, ("khop", "init", "my graph", ">", "run.toml"))
    assert printed.get() == "\nNext:\nkhop init 'my graph' > run.toml\n"


@pytest.mark.long
def test_a_server_and_its_status_name_the_command_of_its_clients(
    khop_command: Command, learnable: Path, place: Path
) -> None:
    pytest.importorskip("pyarrow.flight", reason="pip install pyarrow")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "khop", "serve", str(learnable), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, text=True) as process:
        os.close(theirs)
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(3)]
        status = khop_command("servers", "status", lines[2].split()[-1])
        Path("run.toml").write_text(khop_command("init", str(learnable)).stdout)
        follow(khop_command, status)  # the line of khop serve, as the last line of this test says
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    os.close(ours)
    assert lines[:2] == ["\n", "Next:\n"]
    assert lines[2].startswith("khop train run.toml --servers 127.0.0.1:")
    assert status.code == 0, status
    assert status.stdout.endswith(f"\nNext:\n{lines[2]}")
