"""`khop graph propagate`, and SGC and SIGN trained on the columns that it writes."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Ran

Command = Callable[..., Ran]


def fanouts_of(run: Path) -> list[int]:
    fanouts: list[int] = tomllib.loads((run / "config.toml").read_text())["sampler"]["fanouts"]
    return fanouts


@pytest.mark.long
def test_a_perceptron_trains_on_the_columns_without_neighbors(
    learnable: Path, tmp_path: Path, khop_command: Command
) -> None:
    def succeeds(*words: object) -> str:
        done = khop_command(*map(str, words))
        assert done.code == 0, done.stderr
        return done.stdout

    out = tmp_path / "out"
    printed = succeeds("graph", "propagate", learnable, out, "--columns", "x", "--hops", "2")
    assert f"{out}: columns x_1, x_2." in printed
    train = ("train", "--graph", out, "--model", "mlp", "--epochs", "1")
    succeeds(*train, "--column", "x_2", "--out", tmp_path / "sgc")
    succeeds(*train, "--concat", "x_1,x_2", "--out", tmp_path / "sign")
    assert fanouts_of(tmp_path / "sign") == [0, 0]
    assert json.loads(succeeds("evaluate", tmp_path / "sign", "--json"))
    succeeds(*train, "--fanouts", "2,1", "--out", tmp_path / "other")
    assert fanouts_of(tmp_path / "other") == [2, 1]


def test_too_little_memory_is_refused_with_the_least(
    learnable: Path, tmp_path: Path, khop_command: Command
) -> None:
    words = ("graph", "propagate", str(learnable), str(tmp_path / "out"), "--columns", "x", "--memory", "1MB")
    done = khop_command(*words)
    assert done.code != 0
    assert "memory 1 MB" in done.stderr
    assert "at least" in done.stderr
    assert not (tmp_path / "out").exists()
