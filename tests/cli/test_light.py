"""Calls of the command that need no tensor do not import torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import khop
from khop.api.partition import partition_graph
from khop.cli.main import app
from khop.data.builtin import builtin_names
from khop.data.debian.graph import GRAPHS
from khop.data.importers import BUILTIN_NAMES
from support.small_folders import write_learnable_graph

SOURCE = str(Path(khop.__file__).parents[1])
# Runs each call in a fork of a process that has loaded the parser and nothing else of khop.
PROBE = """
import json, os, sys
from khop.cli.start import run
import khop.cli.main, rich.table
found = []
for words in json.load(sys.stdin):
    receives, sends = os.pipe()
    if os.fork() == 0:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1), os.dup2(silent, 2)
        if isinstance(words, str):
            os.environ |= {"_KHOP_COMPLETE": "complete_bash", "COMP_WORDS": words}
            os.environ["COMP_CWORD"] = str(words.count(" "))
        try:
            run([] if isinstance(words, str) else words)
        except SystemExit as left:
            code = left.code
        loaded = [name for name in ("torch", "numpy", "pandas", "matplotlib") if name in sys.modules]
        os.write(sends, json.dumps([code or 0, loaded]).encode())
        os._exit(0)
    os.wait()
    found.append(json.loads(os.read(receives, 1000)))
print(json.dumps(found))
"""
PLAN = (
    "plan --nodes 1e9 --edges 1e10 --feature-bytes 400 --fanouts 15,10 --machines 8 --network 10 --memory 99"
)
NOTHING = (
    "--version",
    "version",
    "--help",
    "-h",
    "help",
    "help train",
    "trian",
    "train --help",
    "train debain",
    "train debian --epochs many",
    "train debian --epochs 0",
    "train debian --lrate 1",
    "train --resume nowhere",
    "train nowhere.toml",
    "train",
    "evaluate nowhere",
    "evaluate nowhere --split some",
    "infer nowhere --out a.npy",
    "recommend nowhere --user a",
    "profile debian --steps 0",
    "import fedora",
    "plan --nodes many --edges 1 --feature-bytes 1 --fanouts 1 --machines 1 --network 1",
    "partition",
    "graph",
    "graph split",
)
TABS = (
    "khop ",
    "khop tr",
    "khop train --lea",
    "khop train --device c",
    "khop graph s",
    "khop evaluate a --sp",
)
NUMPY = (PLAN, f"{PLAN} --json", "info nowhere", "info graph", "info graph --json", "info parts")


def _loaded(calls: list[object], folder: Path) -> list[tuple[int, list[str]]]:
    environment = {**os.environ, "PYTHONPATH": SOURCE, "KHOP_CACHE": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        cwd=folder,
        env=environment,
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        check=True,
    )
    return [(code, loaded) for code, loaded in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("light")
    partition_graph(write_learnable_graph(folder / "graph"), folder / "parts", 2)
    return folder


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.long)])
def test_help_completion_and_usage_errors_import_neither_torch_nor_numpy(folder: Path, step: int) -> None:
    calls: list[object] = [*(line.split() for line in NOTHING[::step]), *TABS[::step]]
    found = _loaded(calls, folder)
    assert {str(call): loaded for call, (_, loaded) in zip(calls, found, strict=True) if loaded} == {}
    assert {code for code, _ in found} <= {0, 2}


@pytest.mark.long
def test_help_of_every_command_imports_neither_torch_nor_numpy(folder: Path) -> None:
    calls: list[object] = [[*path, "--help"] for path in _commands()]
    assert len(calls) > 12
    assert _loaded(calls, folder) == [(0, [])] * len(calls)


def _commands() -> list[list[str]]:
    found: list[list[str]] = []

    def walk(group: object, path: list[str]) -> None:
        for name, command in getattr(group, "commands", {}).items():
            found.append([*path, name])
            walk(command, [*path, name])

    import typer.main

    walk(typer.main.get_command(app), [])
    return found


@pytest.mark.long
def test_info_and_plan_import_numpy_and_no_torch(folder: Path) -> None:
    found = _loaded([line.split() for line in NUMPY], folder)
    assert [code for code, _ in found] == [0, 0, 2, 0, 0, 0]
    assert [loaded for _, loaded in found] == [["numpy"]] * len(NUMPY)


def test_names_that_stand_apart_from_the_work_are_those_of_the_work() -> None:
    assert builtin_names() == BUILTIN_NAMES == tuple(GRAPHS)
