"""The command, run as a user runs it but in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from khop.cli.main import run
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


@pytest.fixture
def small_run(learnable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run.toml in an empty working directory, of a second's work."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text(f"""
        graph = "{learnable}"
        compute_threads = 1
        sampler = {{ fanouts = [4, 3] }}
        model = {{ hidden = 16, dropout = 0.1 }}
        training = {{ epochs = 3, batch_size = 64, learning_rate = 0.03 }}
    """)
    return path
