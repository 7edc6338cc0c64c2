"""The command, run as a user runs it but in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import khop
from khop.cli.main import run
from support.commands import train_here
from support.small_folders import write_learnable_graph


@dataclass(frozen=True)
class Ran:
    """What one call of the command did."""

    code: int
    stdout: str
    stderr: str


@pytest.fixture
def khop_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Ran]]:
    """`khop_command("train", "debian")` -> exit code, stdout and stderr, without lines of slow machines."""
    monkeypatch.setattr("khop.cli.terminal.FIRST_S", 600.0)

    def call(*arguments: str) -> Ran:
        with pytest.raises(SystemExit) as left:
            run(list(arguments))
        out, err = capsys.readouterr()
        return Ran(left.value.code if isinstance(left.value.code, int) else 0, out, err)

    threads = torch.get_num_threads()
    yield call
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def learnable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small graph folder from which something can be learnt."""
    return write_learnable_graph(tmp_path_factory.mktemp("graphs") / "toy")


@pytest.fixture(scope="session")
def trained_once(learnable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with run.toml and the run `a`, which it has trained for an epoch."""
    home = tmp_path_factory.mktemp("trained")
    write_run(home, learnable)
    train_here(str(home / "run.toml"), "--epochs", "1", "--out", str(home / "a"))
    return home


@pytest.fixture(scope="session")
def trained_shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sound tables, their graph `shop`, a run of links on it, `run`, and a graph `users`."""
    from support import malformed  # needs the packages of imports

    home = tmp_path_factory.mktemp("trained-shop")
    tables = {"users.csv": malformed.USERS, "items.parquet": malformed.ITEMS, "buys.csv": malformed.BUYS}
    malformed.written(home, tables)
    (home / "shop.toml").write_text(malformed.SPEC)
    khop.import_tables(home / "shop.toml", home / "shop")
    users = {"files": ["users.csv"], "id": "id", "columns": {"age": "number"}}
    khop.import_tables({"nodes": {"user": users}}, home / "users", folder=home)
    (home / "run.toml").write_text(malformed.RUN.replace('"shop"', f'"{home}/shop"'))
    train_here(str(home / "run.toml"), "--out", str(home / "run"))
    return home


@pytest.fixture
def trained_run(trained_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with a copy of these."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained_once, tmp_path, dirs_exist_ok=True)


@pytest.fixture
def small_run(learnable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run.toml in an empty working directory, of a second's work."""
    monkeypatch.chdir(tmp_path)
    return write_run(tmp_path, learnable)


def write_run(folder: Path, graph: Path) -> Path:
    """Write a run.toml of three epochs."""
    path = folder / "run.toml"
    path.write_text(f"""
        graph = "{graph}"
        compute_threads = 1
        sampler = {{ fanouts = [4, 3] }}
        model = {{ hidden = 16, dropout = 0.1 }}
        training = {{ epochs = 3, batch_size = 64, learning_rate = 0.03 }}
    """)
    return path
